"""Runs that vary concurrency, arrival rate or temperature: every condition for itself, then what changes with it."""
