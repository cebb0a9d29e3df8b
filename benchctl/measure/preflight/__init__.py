"""A look at models and context before anything is measured."""
