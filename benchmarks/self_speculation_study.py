"""What a diagnosis of the recipe `self-speculation-ablation` found of every draft, kept for the documents' table.

python -m benchmarks.self_speculation_study --diagnosis FOLDER [--keep NAME]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchctl.analysis.results import ALL_TASKS
from benchctl.experiments.diagnose.judge import judge_diagnosis
from benchctl.experiments.diagnose.stored import read_diagnosis
from benchmarks.keep import keep


def drafts_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for every draft of a diagnosis and temperature."""
    for draft in judge_diagnosis(read_diagnosis(folder)):
        for row in draft.acceptance:
            if row.task == ALL_TASKS:
                yield {
                    "draft": draft.draft,
                    "temperature": row.temperature,
                    "per_token": round(row.per_token.value, 3),
                    "accepted_of_k": {depth: round(share.value, 3) for depth, share in row.accepted_share.items()},
                    "c": draft.cost and round(draft.cost, 3),
                    "perplexity_ratio": draft.perplexity_ratio and round(draft.perplexity_ratio, 3),
                }


def main() -> None:
    """Read the diagnosis; print its drafts, or keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--diagnosis", type=Path, required=True, help="its folder")
    parser.add_argument("--keep", help="name of the file below benchmarks/results")
    options = parser.parse_args()
    found = {"drafts": list(drafts_of(options.diagnosis))}
    if options.keep:
        keep(options.keep, found)
    else:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
