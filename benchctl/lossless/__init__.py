"""Losslessness: is an arm's output the target's own? Answers are compared, scored on the target alone, and judged."""
