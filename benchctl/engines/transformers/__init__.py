"""The adapter for Hugging Face transformers, and the server that it starts: `serving`, which alone imports torch."""
