"""What runs in the engine's process. It imports torch, transformers and itself: nothing else of benchctl."""

KEY_VARIABLE = "BENCHCTL_SERVER_KEY"
"""Holds the key that requests need: the command line could be read by others."""
