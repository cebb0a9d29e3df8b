"""Synthetic instruction data of this project: one module a task, all drawing `Example`s from slots.

`GENERATORS` maps a task to its module; every module has `TASK`, `example(rng)` and `keys()`.
"""

from training.generators import code, en_chat, ja_chat, maths, rag, summarisation, translation
from training.generators.example import Example, Generator

GENERATORS: dict[str, Generator] = {
    module.TASK: module.example for module in (ja_chat, translation, code, en_chat, maths, rag, summarisation)
}

KEYS: dict[str, list[str]] = {
    module.TASK: module.keys() for module in (ja_chat, translation, code, en_chat, maths, rag, summarisation)
}

__all__ = ["GENERATORS", "KEYS", "Example", "Generator"]
