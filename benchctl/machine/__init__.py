"""The machine that benchmarks run on: what it is, whether it is fit to measure, what went on in it."""
