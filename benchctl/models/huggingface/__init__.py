"""The Hugging Face folder of a model that is kept as a GGUF file."""
