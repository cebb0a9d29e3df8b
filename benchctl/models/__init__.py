"""Floor 1: where models come from, what identifies them, and what is in their files."""
