"""Floor 1: where models come from, what identifies them, and what their files say."""
