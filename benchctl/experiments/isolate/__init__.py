"""Which tensors of a model must not be quantized."""
