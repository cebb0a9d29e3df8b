"""Which slot combinations are kept for evaluation, and how to draw on either side of that line.

`heldout.json` lists them in full: task -> slot combinations. Training text uses none of them; an evaluation prompt
uses nothing else.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from training.generators import GENERATORS, KEYS, Example

LIST = Path(__file__).with_name("heldout.json")
SEED = 20261121
SHARE = 0.08


def choose() -> dict[str, list[str]]:
    """Pick the reserved combinations of every task."""
    return {
        task: sorted(Random(f"{SEED}/{task}").sample(keys, max(8, round(SHARE * len(keys)))))
        for task, keys in KEYS.items()
    }


def reserved() -> dict[str, frozenset[str]]:
    """The reserved combinations as written in `heldout.json`."""
    return {task: frozenset(keys) for task, keys in json.loads(LIST.read_text("utf-8")).items()}


def draw(task: str, rng: Random, *, held_out: bool) -> Iterator[Example]:
    """Draw examples of a task without end: all their combinations reserved, or none of them."""
    reserved_keys = reserved()[task]
    while True:
        example = GENERATORS[task](rng)
        inside = [key in reserved_keys for key in example.keys]
        if all(inside) if held_out else not any(inside):
            yield example


def main() -> None:
    """Write `heldout.json`, or show held-out examples of a task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="choose the combinations anew and write heldout.json")
    parser.add_argument("--show", metavar="TASK", choices=sorted(GENERATORS), help="print held-out examples of a task")
    parser.add_argument("--number", type=int, default=4, help="how many examples to show")
    parser.add_argument("--seed", type=int, default=0, help="seed of the examples")
    options = parser.parse_args()
    if options.write:
        LIST.write_text(json.dumps(choose(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    if options.show:
        examples = draw(options.show, Random(options.seed), held_out=True)
        for _, example in zip(range(options.number), examples, strict=False):
            print(json.dumps({"user": example.user, "assistant": example.assistant}, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
