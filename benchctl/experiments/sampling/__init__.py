"""Whether sampled answers come from the target's distribution."""
