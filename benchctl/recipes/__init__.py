"""Floor 0: the recipe's schema, its loading from YAML, and its errors."""
