"""One adapter an engine, behind the contract of `benchctl.engines.base`."""
