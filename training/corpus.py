"""Build the training text: synthetic exchanges and natural texts, tokenized into one array of 16-bit token ids.

    python -m training.corpus --help-root HELP --bible-root BIBLE --library-root LIB --output FOLDER

writes `tokenizer/`, `train.npy`, `validation.npy` and `corpus.json` (what went in, by source).
"""

import argparse
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

from training import heldout, sources

SEED = 7


@dataclass(frozen=True)
class Mix:
    """How many documents go in: exchanges of every task, and at most so many natural texts of every source."""

    synthetic: dict[str, int]
    natural: dict[str, int]


MIXES: dict[str, Mix] = {
    "first": Mix(
        {
            "ja_chat": 24000,
            "translation_en_ja": 24000,
            "code": 14000,
            "chat": 10000,
            "maths": 6000,
            "rag": 5000,
            "summarisation": 4000,
        },
        {"help_pairs": 9000, "help_pages": 600, "bible": 1500, "library": 2600},
    ),
    # More of the tasks that need copying from the prompt, new exchanges beyond those of the first mix.
    "second": Mix(
        {
            "ja_chat": 30000,
            "translation_en_ja": 60000,
            "code": 24000,
            "chat": 14000,
            "maths": 16000,
            "rag": 14000,
            "summarisation": 12000,
        },
        {"help_pairs": 6000, "help_pages": 400, "bible": 900, "library": 2000},
    ),
}


def synthetic(task: str, number: int) -> Iterator[tuple[str, str]]:
    """The first `number` training exchanges (user, assistant) of a task; always the same ones."""
    for example in islice(heldout.draw(task, Random(f"{SEED}/{task}"), held_out=False), number):
        yield example.user, example.assistant


def documents(mix: Mix, help_root: Path, bible_root: Path, library_root: Path) -> dict[str, list[str]]:
    """All documents by source, exchanges already in the chat template."""
    from training.generators.translation import INSTRUCTIONS
    from training.tokenizer import chat

    rng = Random(SEED)
    by_source: dict[str, list[str]] = {
        task: [chat(user, assistant) for user, assistant in synthetic(task, number)]
        for task, number in mix.synthetic.items()
    }
    readers: dict[str, Callable[[], list[str]]] = {
        "help_pairs": lambda: [
            chat(rng.choice(INSTRUCTIONS).format(text=english), japanese)
            for english, japanese in sources.help_pairs(help_root)
        ],
        "help_pages": lambda: [text[:2000] for text in sources.help_pages(help_root)],
        "bible": lambda: list(sources.bible_chapters(bible_root)),
        "library": lambda: list(sources.library_code(library_root)),
    }
    for name, read in readers.items():
        texts = read()
        by_source[name] = rng.sample(texts, min(len(texts), mix.natural[name]))
    return by_source


def main() -> None:
    """Build and write the corpus."""
    import numpy as np
    from tokenizers import Tokenizer

    from training.tokenizer import SPECIALS, learn

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--help-root", type=Path, required=True, help="folder with en-US/ and ja/ of LibreOffice help")
    parser.add_argument("--bible-root", type=Path, required=True, help="folder with ot.bzz, ot.bzs, nt.bzz, nt.bzs")
    parser.add_argument("--library-root", type=Path, required=True, help="folder of the Python standard library")
    parser.add_argument("--mix", choices=sorted(MIXES), default="first")
    parser.add_argument("--tokenizer", type=Path, help="use this tokenizer instead of learning one")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()

    groups = documents(MIXES[options.mix], options.help_root, options.bible_root, options.library_root)
    texts = [(name, text) for name, group in groups.items() for text in group]
    Random(SEED).shuffle(texts)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.tokenizer:
        shutil.copytree(options.tokenizer, options.output / "tokenizer", dirs_exist_ok=True)
    else:
        learn((text for _, text in texts[::3]), options.output / "tokenizer")
    tokenizer = Tokenizer.from_file(str(options.output / "tokenizer" / "tokenizer.json"))
    end = SPECIALS.index("<|endoftext|>")
    encoded = tokenizer.encode_batch([text for _, text in texts], add_special_tokens=False)
    counts: dict[str, dict[str, int]] = {name: {"documents": len(group), "tokens": 0} for name, group in groups.items()}
    stream: list[int] = []
    for (name, _), encoding in zip(texts, encoded, strict=True):
        stream.extend(encoding.ids)
        stream.append(end)
        counts[name]["tokens"] += len(encoding.ids) + 1
    tokens = np.array(stream, dtype=np.uint16)
    heldout_count = len(tokens) // 100
    np.save(options.output / "validation.npy", tokens[:heldout_count])
    np.save(options.output / "train.npy", tokens[heldout_count:])
    summary = {
        "mix": options.mix,
        "seed": SEED,
        "train_tokens": len(tokens) - heldout_count,
        "validation_tokens": heldout_count,
        "sources": counts,
    }
    (options.output / "corpus.json").write_text(json.dumps(summary, indent=1) + "\n", "utf-8")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
