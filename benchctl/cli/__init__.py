"""Floor 6: the commands. Each file reads options, calls one function and shows the answer."""
