"""Scoring answers on the target alone, out of band, to explain differences."""
