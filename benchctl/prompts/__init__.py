"""Floor 1: prompt suites."""
