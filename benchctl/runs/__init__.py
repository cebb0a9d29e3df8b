"""Floor 3: the plan, the runner and the store of a run."""
