"""The ways to draft, one idea a file; `benchctl.engines.transformers.methods` lists them."""
