"""`benchctl compare --fail-if`: how often unchanged runs fail, and how often a planted slow-down does.

    python -m benchmarks.gates

A gate run is simulated with the gates `slower`, `ttft`, `memory` and `acceptance`. A run is the logarithms of its
blocks' decode rates (`PROCESS`: of a process; `state`: of one arm in one run, which blocks do not show), of its times
to the first token (twice as noisy) and of its peak memory (0.1 %); acceptance lengths repeat exactly. A is one run, or
three that were kept together. `stored`: the noise between blocks is drawn from the blocks of a stored run instead (of
every arm, around its mean). False are gate runs that fail with nothing planted, found those that fail with a slow-down
planted in the last arm; stated is the power that `ArmTest.chance` says beforehand, on average.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchctl.analysis.comparison.changes import Quantity, find_quantities
from benchctl.analysis.comparison.compare import OwnFacts, compare_arm
from benchctl.analysis.comparison.gates import ERROR, ArmTest, Gate, find_worse, tests_of
from benchctl.analysis.comparison.rates import InAllRuns, Measured
from benchctl.analysis.comparison.results import ArmComparison, RunComparison, RunFacts
from benchctl.analysis.comparison.watched import watched_changes
from benchctl.analysis.comparison.workload import Outputs
from benchctl.analysis.results import ALL_TASKS
from benchctl.analysis.statistics import LEVEL
from benchctl.data.store import open_run
from benchctl.lossless.analysed import analyse_run
from benchmarks.keep import keep

Floats = NDArray[np.float64]
PROCESS = 0.02
"""Standard deviation of the logarithm of one block's decode rate."""
PLANTED = (0.0, 0.01, 0.02, 0.05, 0.1, 0.3)
ARMS = 2
"""Beside the baseline."""
TOLERANCES = (0.01, 0.05, 0.1)
STORED = Path(__file__).parents[1] / "results" / "qwen2.5-coder" / "20261122-191218-f263"


def main() -> None:
    """Simulate and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="gate runs of each case")
    parser.add_argument("--workers", type=int, default=2, help="cases at a time")
    options = parser.parse_args()
    stored = _stored_noise()
    cases = [
        {"noise": noise, "state_sd": state, "kept_runs": kept, "blocks": blocks}
        for noise in ("normal", "stored")
        for state, kept in ((0.0, 1), (0.01, 1), (0.01, 3))
        for blocks in (3, 5, 8)
    ]
    with ProcessPoolExecutor(options.workers) as pool:
        found = pool.map(partial(_case, stored, options.runs), range(len(cases)), cases)
        results = [case | by_gate for case, by_gate in zip(cases, found, strict=True)]
    keep(
        "gates",
        {
            "gate_runs_a_case": options.runs,
            "error": ERROR,
            "arms": ARMS,
            "process_sd": PROCESS,
            "stored_sd": float(stored.std()),
            "cases": results,
        },
    )


def _stored_noise() -> Floats:
    """Return the logarithms of the blocks' decode rates of a stored run around each arm's mean, as of many blocks."""
    found = analyse_run(open_run(STORED))
    blocks = [np.log(row.by_block) for row in found.speedups if row.task == ALL_TASKS]
    pool = np.concatenate([(of_arm - of_arm.mean()) * (len(of_arm) / (len(of_arm) - 1)) ** 0.5 for of_arm in blocks])
    return pool / 2**0.5  # a speed-up has the noise of two arms


def _case(stored: Floats, runs: int, number: int, case: dict[str, Any]) -> dict[str, Any]:
    """Return, by tolerance and by what was planted, in which share of gate runs a gate failed, and the stated power."""
    rng = np.random.default_rng((20261125, number))
    state, kept = case["state_sd"], case["kept_runs"]
    failed = np.zeros((len(TOLERANCES), len(PLANTED)))
    stated = np.zeros_like(failed)
    for _ in range(runs):
        shape = (kept + 1, ARMS + 1, case["blocks"])
        noise = PROCESS * rng.standard_normal(shape) if case["noise"] == "normal" else rng.choice(stored, shape)
        logs = noise + state * rng.standard_normal((*shape[:2], 1))
        others = {
            "ttft": 2 * PROCESS * rng.standard_normal(shape) + state * rng.standard_normal((*shape[:2], 1)),
            "memory": 0.001 * rng.standard_normal(shape),
            "acceptance code": np.full(shape, np.log(2.5)),
        }
        unchanged = _compared(logs, others, kept)
        for row, tolerance in enumerate(TOLERANCES):
            words = ("slower", "ttft", "memory", "acceptance")
            gates = [Gate(word, 2 * tolerance if word == "ttft" else tolerance) for word in words]
            tests = [test for gate in gates for test in tests_of(gate, unchanged)]
            noisy = sum(test.is_noisy for test in tests)
            last = max(place for place, test in enumerate(tests) if test.gate.word == "slower")
            for place, share in enumerate(PLANTED):
                slowed = _slowed(tests[last], share)
                failed[row, place] += bool(find_worse([*tests[:last], slowed, *tests[last + 1 :]], ERROR))
                stated[row, place] += slowed.chance(share, ERROR / noisy)
    return {
        f"slower:{100 * tolerance:g}%": {
            "false": failed[row, 0] / runs,
            "found": {f"{share:g}": failed[row, place] / runs for place, share in enumerate(PLANTED) if share},
            "stated": {
                f"{share:g}": round(stated[row, place] / runs, 4) for place, share in enumerate(PLANTED) if share
            },
        }
        for row, tolerance in enumerate(TOLERANCES)
    }


def _compared(logs: Floats, others: dict[str, Floats], kept: int) -> RunComparison:
    """Return the comparison of `kept` runs with one; arrays are (runs, baseline and arms, blocks)."""
    names = [str(number) for number in range(logs.shape[1])]
    groups = dict.fromkeys(names, names[0])
    level = 1 - (1 - LEVEL) / len(names)
    rates = find_quantities(_in_all_runs(names, logs), kept, groups, level, arms_repeat=False)
    ratios = _in_all_runs(names[1:], logs[:, 1:] - logs[:, :1])
    speedups = find_quantities(ratios, kept, groups, level, arms_repeat=True)
    watched = watched_changes(
        {
            name: [
                {
                    what: Measured(float(np.exp(run[number].mean())), np.exp(run[number]).tolist())
                    for what, run in of_run
                }
                for of_run in (list(zip(others, runs, strict=True)) for runs in zip(*others.values(), strict=True))
            ]
            for number, name in enumerate(names)
        },
        kept,
        groups,
        level,
    )
    return RunComparison(
        a=_facts("A"),
        b=_facts("B"),
        on_trust=[],
        changed=[],
        arms=[_arm(name, rates[name], speedups.get(name), watched[name]) for name in names],
        only_in_a=[],
        only_in_b=[],
        lossless_b=[],
    )


def _arm(name: str, rate: Quantity, speedup: Quantity | None, watched: dict[str, Any]) -> ArmComparison:
    facts = OwnFacts(None, None, [])
    return compare_arm(
        name,
        rate,
        speedup,
        watched,
        is_baseline=speedup is None,
        own=(facts, facts),
        outputs=Outputs(same=0, differing=[], undetermined=[], kept=False),
        prompts=1,
        doubt=None,
    )


def _facts(run: str) -> RunFacts:
    return RunFacts(
        run=run,
        folder="",
        recipe="",
        created_at=None,
        status=None,
        baseline="0",
        blocks=1,
        failed_cells=[],
        damage=[],
        warnings=[],
    )


def _slowed(test: ArmTest, share: float) -> ArmTest:
    """Return the test of an arm that is slower by a share, with the same noise."""
    ratio = (test.change.ratio or 0.0) * (1 - share)
    return replace(test, change=test.change.model_copy(update={"ratio": ratio}))


def _in_all_runs(names: list[str], logs: Floats) -> dict[str, InAllRuns]:
    found = {}
    for number, name in enumerate(names):
        runs = [Measured(float(np.exp(run[number].mean())), np.exp(run[number]).tolist()) for run in logs]
        found[name] = InAllRuns(runs, [run.value for run in runs], unequal=False, prompts=1)
    return found


if __name__ == "__main__":
    main()
