"""The cost of a round of speculation: each of its parts, and what they predict for other depths."""
