"""How the bundled models are made: data, tokenizer, training, export. Nothing here is needed to run benchctl."""
