"""Explaining a fork by replaying it on the target alone."""
