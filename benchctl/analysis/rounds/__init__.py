"""What a round of speculation is made of: the cost of each part, and what it predicts for other depths."""
