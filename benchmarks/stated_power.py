"""The power that `verify-lossless` states beside the share of runs in which the same wrong engine is found.

    python -m benchmarks.stated_power RUN …      # runs of benchmarks.lossy_engines.run

An engine that accepts the runner-up within so many nats is measured, and runs are drawn again from what was scored of
it (`resampled_audits`). Each drawn run states a power against such an engine, and finds it or does not; so does each of
the sound arm, which states the same power without the fault, and of an arm whose divergences are drawn from the
target's noise (`sound_afresh`). Where the target has no noise, one divergence is a violation, and a drawn run without
any is not found. Runs of more prompts than were measured are drawn of the latter alone.
"""

from __future__ import annotations

import argparse
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchctl.data.scores import SCORES
from benchctl.data.store import open_run
from benchmarks.bundled_runs import verified
from benchmarks.keep import keep
from benchmarks.resampled_audits import Audited, found_in_draws

NATS = (0.1, 0.3, 1.0)
PROMPTS = (12, 48, 200)
_SOUND = re.compile(r"(?:sound|spec)_d4")
_ARM = re.compile(rf"accept_within_[\d.]+|{_SOUND.pattern}")


def main() -> None:
    """Draw runs of every arm that is sound or accepts the runner-up, and keep what they state and find."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="+")
    parser.add_argument(
        "--draws", type=int, nargs=len(PROMPTS), default=[200, 100, 50], help="of each number of prompts"
    )
    parser.add_argument("--audit-minutes", type=float, default=30, help="for scoring what is not scored yet")
    options = parser.parse_args()
    keep("stated_power", {"runs": [_of(run, options) for run in options.run]})


def _of(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    scored = (folder / SCORES).is_file()
    _, document = verified(folder, *(["--offline"] if scored else ["--audit-minutes", str(options.audit_minutes)]))
    audited, run = Audited.read(folder), open_run(folder)
    assert audited is not None and run.manifest is not None
    by_arm: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor() as pool:
        drawn = {
            (arm.name, prompts): pool.submit(_drawn, audited, arm.name, prompts, draws)
            for prompts, draws in zip(PROMPTS, options.draws, strict=True)
            for arm in run.manifest.arms
            if _ARM.fullmatch(arm.name)
        }
        sound = next((arm.name for arm in run.manifest.arms if _SOUND.fullmatch(arm.name)), None)
        if sound is not None:
            for prompts, draws in zip(PROMPTS, options.draws, strict=True):
                drawn["sound_afresh", prompts] = pool.submit(_drawn, audited, sound, prompts, draws, afresh=True)
        for (arm_name, prompts), result in drawn.items():
            by_arm.setdefault(arm_name, {})[str(prompts)] = result.result()
    return {
        "run": folder.name,
        "target": run.manifest.target.source.rpartition("/")[2],
        "quantize": (run.manifest.recipe.get("models") or {}).get("target", {}).get("quantize"),
        "prompts": len(run.manifest.prompts),
        "max_tokens": run.manifest.recipe["sampling"]["max_tokens"],
        "as_measured": {arm["arm"]: _said(arm) for arm in document["arms"]},
        "drawn": by_arm,
    }


def _said(arm: dict[str, Any]) -> dict[str, Any]:
    audit = arm["audit"] or {}
    keys = ("answers", "tokens", "diverged", "expected", "p_adjusted", "prefixes", "changed", "stated", "lacking")
    return {"verdict": arm["verdict"], "counts": arm["counts"], **{key: audit[key] for key in keys if key in audit}}


def _drawn(audited: Audited, arm: str, prompts: int, draws: int, *, afresh: bool = False) -> dict[str, Any]:
    return found_in_draws(audited, arm, prompts=prompts, draws=draws, nats=NATS, afresh=afresh)


if __name__ == "__main__":
    main()
