"""What runs in the engine's process. It imports torch, transformers and itself: nothing else of benchctl."""

KEY_VARIABLE = "BENCHCTL_SERVER_KEY"
"""Holds the key that requests need: the command line could be read by others."""


class UnsuitableError(ValueError):
    """A model cannot be served, or a method cannot work with it or with these options; `fix` is what to do."""

    def __init__(self, problem: str, fix: str = "Correct the arm's speculation.") -> None:
        super().__init__(problem)
        self.fix = fix
