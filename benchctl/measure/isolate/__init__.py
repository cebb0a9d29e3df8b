"""Which tensors' quantization breaks a model: quantizing and asking."""
