"""Verdicts on arms: pure functions of records and stored scores, which launch nothing."""
