"""Floor 2: one adapter an engine, behind the contract of `benchctl.engines.base`."""
