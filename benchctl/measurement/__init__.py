"""Run a benchmark recipe: launch its engines, measure every prompt, and store the records."""
