"""The ways to draft, an idea a file; `benchctl.engines.transformers.methods` lists them."""
