"""Finding the tensors whose quantization breaks a model: the work of it, measurement by measurement."""
