"""One wing above analysis: everything that launches engines and measures them."""
