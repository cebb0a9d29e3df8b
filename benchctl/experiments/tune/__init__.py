"""Which setting is fastest? A search within a budget, by successive halving."""
