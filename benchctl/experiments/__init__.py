"""Experiments beyond a run: each folder has its command, what it measures, analyses, stores and shows."""
