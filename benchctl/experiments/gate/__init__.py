"""What others can check of a run: a certificate of its verdict."""
