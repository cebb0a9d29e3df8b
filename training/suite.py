"""Write `prompts/tiny.json`, the evaluation suite of the bundled models, from the held-out slot combinations.

python -m training.suite prompts/tiny.json
python -m training.suite FILE --number 20       # a larger sample, as drawn, for measuring only
"""

import argparse
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from random import Random

from training import heldout
from training.generators import Example, translation

TASKS = ("ja_chat", "translation_en_ja", "code", "maths", "rag", "summarisation")
NUMBER = 4
DRAWN = 48
SEED = 2611
SOURCE = "written by this project: drawn from slot combinations that no training text uses (training/heldout.json)"


def drawn(task: str, rng: Random, number: int, sentences: Sequence[int]) -> list[Example]:
    """Held-out examples of a task; a translation has one of `sentences` sentences, all held out."""
    if task != translation.TASK:
        return list(islice(heldout.draw(task, rng, held_out=True), number))
    pairs = translation.pairs_of(heldout.reserved()[task])
    return [translation.example(rng, rng.choice(sentences), pairs) for _ in range(number)]


def prompt(example: Example) -> dict[str, object]:
    """An example as a prompt of a suite."""
    return {"messages": [{"role": "user", "content": example.user}], "reference": example.assistant}


def prompts(task: str) -> list[dict[str, object]]:
    """Held-out prompts of a task from long to short answers, no slot combination twice."""
    drawn_prompts = drawn(task, Random(f"{SEED}/{task}"), DRAWN, (2, 3, 4, 4))
    drawn_prompts.sort(key=lambda example: len(example.assistant), reverse=True)
    chosen: list[dict[str, object]] = []
    used: set[str] = set()
    for part in range(NUMBER):
        candidates = drawn_prompts[part * DRAWN // (NUMBER + 1) :]
        example = next(candidate for candidate in candidates if used.isdisjoint(candidate.keys))
        used.update(example.keys)
        chosen.append(prompt(example))
    return chosen


def suite(number: int | None = None) -> dict[str, object]:
    """The suite, or a larger sample of `number` prompts a task, in the format of all suites."""
    if number is None:
        tasks = {task: prompts(task) for task in TASKS}
    else:
        tasks = {
            task: [prompt(example) for example in drawn(task, Random(f"wide/{task}"), number, (1, 2, 3, 4))]
            for task in TASKS
        }
    return {"schema": 1, "name": "tiny", "kind": "chat", "licence": "Apache-2.0", "source": SOURCE, "tasks": tasks}


def main() -> None:
    """Write the suite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--number", type=int, help="draw this many prompts a task instead of choosing four")
    options = parser.parse_args()
    options.output.write_text(json.dumps(suite(options.number), ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
