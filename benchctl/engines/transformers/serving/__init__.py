"""What runs in the engine's process. It imports torch, transformers and itself: nothing else of benchctl."""
