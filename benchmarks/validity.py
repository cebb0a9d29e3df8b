"""benchctl's own error rates: how often it claims what is not so, and how often it misses what is.

    python -m benchmarks.validity --section c     # a to f; without --section all of them

| section | question |
| --- | --- |
| a | two arms that are the same: how often is one called faster or slower? |
| b | an arm that is 3 % or 10 % slower: how often is that found, with 3, 5 and 8 blocks? |
| c | answers that are spoilt in a known way: are all of them found, and nothing else? |
| d | synthetic acceptance at known rates: is that what is reported? |
| e | sampling: false alarms of the check, and wrong samplers that it finds |
| f | engines that are wrong inside (`lossy_engines`): what is said of each, beside sound arms of the same run? |

On the bundled pair; f also on others, whose runs it is given. a and b time things and want a quiet machine; the others
do not. Each section's result is kept in `results/validity.json` beside those of the others, with its own command, time
and load.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.keep import RESULTS, command, keep
from benchmarks.validity_faults import wrong_inside
from benchmarks.validity_lossless import known_acceptance, spoilt_answers
from benchmarks.validity_sampling import checked_samplers
from benchmarks.validity_speed import equal_arms, slowed_arms

Section = Callable[[Path, argparse.Namespace], dict[str, Any]]
SECTIONS: dict[str, Section] = {
    "a": equal_arms,
    "b": slowed_arms,
    "c": spoilt_answers,
    "d": known_acceptance,
    "e": checked_samplers,
    "f": wrong_inside,
}


def main() -> None:
    """Run the sections that were asked for, and keep what each found at once."""
    options = _options()
    for name in options.section or SECTIONS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="validity-") as scratch:
            results = SECTIONS[name](Path(scratch), options)
        settings = {
            "command": command(),
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "load_average": os.getloadavg(),
            "minutes": round((time.monotonic() - began) / 60, 1),
        }
        keep("validity", dict(sorted({**_earlier(), options.keep_as or name: {**results, **settings}}.items())))


def _earlier() -> dict[str, Any]:
    file = RESULTS / "validity.json"
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["found"] if file.exists() else {}
    return results


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", action="append", choices=sorted(SECTIONS))
    parser.add_argument("--keep-as", metavar="NAME", help="beside what the one section kept before, not in its place")
    parser.add_argument("--runs", type=int, help="a: runs (100); b: runs (20)")
    parser.add_argument("--prompts", type=int, default=1000, help="c: prompts")
    parser.add_argument("--real-run", type=Path, help="c: a run of a real pair whose forks were replayed")
    parser.add_argument("--checks", type=int, default=100, help="e: small checks of a right sampler")
    parser.add_argument("--seeds", type=int, default=40, help="e: answers to a prompt in a small check")
    parser.add_argument("--faulty-run", type=Path, action="append", help="f: a run of benchmarks.lossy_engines.run")
    parser.add_argument("--draws", type=int, default=200, help="f: runs that are drawn again from each sound arm")
    parser.add_argument("--drawn-prompts", type=int, nargs="+", default=[12, 48, 200], help="f: prompts of these runs")
    parser.add_argument("--wrong-draws", type=int, default=200, help="f: the same of each wrong arm")
    return parser.parse_args()


if __name__ == "__main__":
    main()
