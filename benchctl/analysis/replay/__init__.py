"""Judging a fork by what the target alone showed."""
