"""Searching for the fastest setting within a budget of minutes, and measuring what was found afresh."""
