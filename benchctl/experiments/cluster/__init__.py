"""Measuring on the machines of a Ray cluster: `benchctl run --on`."""
