"""Where models come from, what identifies them, and what is in their files."""
