"""The Hugging Face folder of a model that is kept as one GGUF file, and the way back."""
