"""The commands. Each file reads options, calls one function and shows the answer."""
