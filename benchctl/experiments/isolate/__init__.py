"""Finding the tensors whose quantization breaks a model: which to try next, and what the measurements show."""
