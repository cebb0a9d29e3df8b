"""Drawing sampled answers from every arm."""
