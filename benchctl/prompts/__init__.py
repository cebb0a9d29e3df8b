"""Prompt suites: what is asked, and in which file formats it may be given."""
