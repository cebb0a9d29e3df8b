"""The drafting methods, one in each file; `benchctl.engines.transformers.methods` lists them."""
