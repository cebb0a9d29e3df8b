"""Looking at the models before any speed is measured."""
