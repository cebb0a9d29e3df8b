"""Which tensors' quantization damages a model: quantizing and measuring."""
