"""Build the training text: synthetic exchanges and natural texts, tokenized into one array of 16-bit token ids.

    python -m training.corpus --help-root HELP --bible-root BIBLE --library-root LIB --output FOLDER

writes `tokenizer/`, `train.npy`, `validation.npy` and `corpus.json` (what went in, by source).
"""

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

from training import heldout, sources

SEED = 7

# task -> synthetic exchanges
SYNTHETIC: dict[str, int] = {
    "ja_chat": 17000,
    "translation_en_ja": 18000,
    "code": 12000,
    "chat": 9000,
    "maths": 5000,
    "rag": 4000,
    "summarisation": 4000,
}

# source -> at most this many natural documents
NATURAL: dict[str, int] = {"help_pairs": 9000, "help_pages": 600, "bible": 2600, "library": 3000}


def synthetic(task: str, number: int) -> Iterator[tuple[str, str]]:
    """The first `number` training exchanges (user, assistant) of a task; always the same ones."""
    for example in islice(heldout.draw(task, Random(f"{SEED}/{task}"), held_out=False), number):
        yield example.user, example.assistant


def documents(help_root: Path, bible_root: Path, library_root: Path) -> dict[str, list[str]]:
    """All documents by source, exchanges already in the chat template."""
    from training.generators.translation import INSTRUCTIONS
    from training.tokenizer import chat

    rng = Random(SEED)
    found: dict[str, list[str]] = {
        task: [chat(user, assistant) for user, assistant in synthetic(task, number)] for task, number in SYNTHETIC.items()
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
        found[name] = rng.sample(texts, min(len(texts), NATURAL[name]))
    return found


def main() -> None:
    """Build and write the corpus."""
    import numpy as np

    from training.tokenizer import learn

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--help-root", type=Path, required=True, help="folder with en-US/ and ja/ of LibreOffice help")
    parser.add_argument("--bible-root", type=Path, required=True, help="folder with ot.bzz, ot.bzs, nt.bzz, nt.bzs")
    parser.add_argument("--library-root", type=Path, required=True, help="folder of the Python standard library")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()

    found = documents(options.help_root, options.bible_root, options.library_root)
    texts = [(name, text) for name, group in found.items() for text in group]
    Random(SEED).shuffle(texts)
    tokenizer = learn((text for _, text in texts[::3]), options.output / "tokenizer")
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    encoded = tokenizer.backend_tokenizer.encode_batch([text for _, text in texts], add_special_tokens=False)
    counts: dict[str, dict[str, int]] = {name: {"documents": len(group), "tokens": 0} for name, group in found.items()}
    stream: list[int] = []
    for (name, _), encoding in zip(texts, encoded, strict=True):
        stream += [*encoding.ids, end]
        counts[name]["tokens"] += len(encoding.ids) + 1
    tokens = np.array(stream, dtype=np.uint16)
    held = len(tokens) // 100
    np.save(options.output / "validation.npy", tokens[:held])
    np.save(options.output / "train.npy", tokens[held:])
    summary = {"seed": SEED, "train_tokens": len(tokens) - held, "validation_tokens": held, "sources": counts}
    (options.output / "corpus.json").write_text(json.dumps(summary, indent=1) + "\n", "utf-8")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
