"""The recipe: its schema, its loading from YAML, its expansion into arms, and its errors."""
