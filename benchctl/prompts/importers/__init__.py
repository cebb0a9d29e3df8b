"""Prompt suites made from public question files: the formats, their rows, and the suite that is written."""
