"""Runs of the same workload side by side."""
