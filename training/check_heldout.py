"""Prove that no prompt or reference answer of a suite stands verbatim in the training text.

    python -m training.check_heldout prompts/tiny.json [--share 0.1] [--corpus FOLDER]

Regenerates the synthetic training exchanges (all, or a share of each task) and looks for every prompt and every answer
as a substring; `--corpus` also searches the tokenized corpus that was really trained on, natural texts included. Also
counts how many of the answers' single sentences occur, which slots make unavoidable.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from training import corpus
from training.generators import GENERATORS

_SENTENCE = re.compile(r"(?<=[。.!?])\s*|\n+")


@dataclass(frozen=True)
class Finding:
    """A prompt or an answer that stands in the training text."""

    task: str
    kind: str
    text: str


def entries(suite: Path) -> list[tuple[str, str, str]]:
    """(task, "prompt" or "answer", text) of everything in a suite that must not stand in the training text."""
    rows = []
    for task, prompts in json.loads(suite.read_text("utf-8"))["tasks"].items():
        for prompt in prompts:
            turns = prompt["messages"] if "messages" in prompt else [{"content": prompt["prompt"]}]
            rows += [(task, "prompt", turn["content"]) for turn in turns]
            if prompt.get("reference"):
                rows.append((task, "answer", prompt["reference"]))
    return rows


def synthetic_text(share: float) -> str:
    """The synthetic training exchanges as one text, a share of each task from its beginning."""
    parts: list[str] = []
    for task in GENERATORS:
        number = max(mix.synthetic[task] for mix in corpus.MIXES.values())
        for user, assistant in corpus.synthetic(task, max(1, round(share * number))):
            parts += (user, assistant)
    return "\n\n".join(parts)


def corpus_text(folder: Path) -> str:
    """The text that was trained on, decoded from the tokenized corpus."""
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    tokens = np.load(folder / "train.npy", mmap_mode="r")
    pieces = (tokens[start : start + 1_000_000].tolist() for start in range(0, len(tokens), 1_000_000))
    # Pieces overlap nowhere, so an entry could hide at a border; the borders are decoded as well.
    borders = (tokens[max(0, start - 2000) : start + 2000].tolist() for start in range(0, len(tokens), 1_000_000))
    return "\n\n".join(tokenizer.decode(ids, skip_special_tokens=False) for group in (pieces, borders) for ids in group)


def findings(wanted: Iterable[tuple[str, str, str]], text: str) -> list[Finding]:
    """The entries that stand verbatim in the text."""
    return [Finding(task, kind, entry) for task, kind, entry in wanted if entry.strip() in text]


def sentence_overlap(wanted: Iterable[tuple[str, str, str]], text: str) -> tuple[int, int]:
    """How many sentences of the answers occur in the text, and how many there are."""
    sentences = {s for _, kind, entry in wanted if kind == "answer" for s in _SENTENCE.split(entry) if len(s) > 8}
    return sum(sentence in text for sentence in sentences), len(sentences)


def main() -> None:
    """Check and report; exit status 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--share", type=float, default=1.0, help="share of the synthetic text to regenerate")
    parser.add_argument("--corpus", type=Path, help="what training.corpus wrote")
    options = parser.parse_args()
    wanted = entries(options.suite)
    text = synthetic_text(options.share)
    if options.corpus:
        text += corpus_text(options.corpus)
    overlaps = findings(wanted, text)
    overlapping, total = sentence_overlap(wanted, text)
    for finding in overlaps:
        print(f"{finding.task}: {finding.kind} stands in the training text: {finding.text!r}")
    print(f"{len(wanted)} prompts and answers against {len(text):,} characters: {len(overlaps)} found")
    print(f"single sentences of the answers that occur: {overlapping} of {total}")
    sys.exit(1 if overlaps else 0)


if __name__ == "__main__":
    main()
