"""The audit: whole answers, scored on the target alone, against what its own numeric noise explains."""
