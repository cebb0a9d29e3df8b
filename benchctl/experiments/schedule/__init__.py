"""Which draft depth at which load? The engine's own schedule, written from a run over concurrency and measured."""
