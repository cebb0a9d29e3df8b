"""Prompt suites made from public question files: one file a format, and the table of formats in `registry`."""
