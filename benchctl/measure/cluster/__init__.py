"""A run on several machines: the groups of its blocks, each measured on one node."""
