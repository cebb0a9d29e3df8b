"""`benchctl compare --fail-if`: how often unchanged runs fail, and how often a planted slow-down does.

    python -m benchmarks.gates

A gate run is simulated with the gates `slower`, `ttft` and `memory`, of two arms. A run is the logarithms of its
blocks' decode rates (`PROCESS`: of a process; `state`: of one arm in one run, which blocks do not show), of its times
to the first token (twice as noisy) and of its peak memory (0.1 %). A is one run, or three that were kept together.
`stored`: the noise between blocks is drawn from the blocks of a stored run instead (of every arm, around its mean).
False are gate runs in which a gate finds something with nothing planted, found those with a slow-down planted in the
last arm. `passed`: gate runs in which every gate passes: neither found nor "cannot tell"; `slower passed` those
in which `slower` does. `needed`: the blocks that are advised to an unchanged arm (median).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, ndtri, stdtr, stdtrit

from benchctl.analysis.comparison.changes import InAllRuns, without_prompts
from benchctl.analysis.comparison.compare import ArmInRuns, ArmResults, RunComparison, RunFacts, compare_arms
from benchctl.analysis.comparison.gates import ERROR, MISSED, POWER, ArmTest, Gate, find_worse, tests_of
from benchctl.analysis.comparison.workload import Outputs
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.speed_table import Measured
from benchctl.analysis.statistics import COMMON, LEVEL, MOST_SHARED, PLAINLY_NOISIER
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchmarks.keep import keep

Floats = NDArray[np.float64]
PROCESS = 0.02
"""Standard deviation of the logarithm of one block's decode rate."""
PLANTED = (0.0, 0.01, 0.02, 0.05, 0.1, 0.3)
CHECKED = 3
"""Gate runs of every case and tolerance for which the program itself is asked."""
ARMS = 2
"""Beside the baseline."""
TOLERANCES = (0.01, 0.05, 0.1)
STORED = Path(__file__).parents[1] / "results" / "qwen2.5-coder" / "20261122-191218-f263"


def main() -> None:
    """Simulate and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="gate runs of each case")
    options = parser.parse_args()
    stored = _stored_noise()
    cases = [
        {"noise": noise, "state_sd": state, "kept_runs": kept, "blocks": blocks}
        for noise in ("normal", "stored")
        for state, kept in ((0.0, 1), (0.01, 1), (0.01, 3))
        for blocks in (3, 5, 6, 8)
    ]
    results = [case | _case(stored, options.runs, number, case) for number, case in enumerate(cases)]
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
    shape = (runs, kept + 1, ARMS + 1, case["blocks"])
    noise = PROCESS * rng.standard_normal(shape) if case["noise"] == "normal" else rng.choice(stored, shape)
    logs = noise + state * rng.standard_normal((*shape[:3], 1))
    ttft = 2 * PROCESS * rng.standard_normal(shape) + state * rng.standard_normal((*shape[:3], 1))
    memory = 0.001 * rng.standard_normal(shape)
    changes = {
        "slower": _change(logs[:, :, 1:] - logs[:, :, :1], kept, arms_repeat=True),
        "ttft": _change(ttft, kept, arms_repeat=False),
        "memory": _change(memory, kept, arms_repeat=False),
    }
    tests = sum(change.shape[-1] for change, _ in changes.values())
    found: dict[str, Any] = {}
    for tolerance in TOLERANCES:
        gates = [Gate(word, 2 * tolerance if word == "ttft" else tolerance) for word in changes]
        own = found[f"slower:{100 * tolerance:g}%"] = {"found": {}, "passed": {}, "slower passed": {}}
        for share in PLANTED:
            least, tells, passes = np.full(runs, np.inf), np.full(runs, True), np.full(runs, True)
            for gate in gates:
                change, variances = changes[gate.word]
                distance = -change if gate.word == "slower" else change.copy()
                if gate.word == "slower":
                    distance[:, -1] -= np.log1p(-share)
                beyond = distance - gate.tolerance
                p = np.max([stdtr(freedom, -beyond / value**0.5) for value, freedom in variances], axis=0)
                least = np.minimum(least, p.min(axis=1))
                half = np.max([stdtrit(freedom, 1 - MISSED) * value**0.5 for value, freedom in variances], axis=0)
                excluded = (beyond + half < 0).all(axis=1)
                tells &= excluded
                passes &= excluded | (gate.word != "slower")
            failed = tests * least < ERROR  # Holm's first step: some gate fails
            own["passed"][f"{share:g}"] = float((tells & ~failed).mean())
            own["slower passed"][f"{share:g}"] = float(passes.mean())
            own["found" if share else "false"] = (
                own["found"] | {f"{share:g}": float(failed.mean())} if share else float(failed.mean())
            )
            for gate_run in range(CHECKED if share in (0.0, 0.1) else 0):
                others = {"ttft": ttft[gate_run], "memory": memory[gate_run]}
                compared = _compared(logs[gate_run], others, kept)
                program = [test for gate in gates for test in tests_of(gate, compared)]
                program[ARMS - 1] = _slowed(program[ARMS - 1], share)
                assert bool(find_worse(program, ERROR)) == failed[gate_run]
                assert all(test.at_worst(MISSED) < test.gate.tolerance for test in program) == tells[gate_run]
        if kept == 1:
            value = changes["slower"][1][0][0]
            times = value * ((ndtri(1 - MISSED) + ndtri(POWER)) / gates[0].tolerance) ** 2
            own["needed"] = float(np.median(np.ceil(case["blocks"] * times)))
    return found


def _change(logs: Floats, kept: int, *, arms_repeat: bool) -> tuple[Floats, list[tuple[Floats, Floats]]]:
    """Return the changes, (gate runs, arms), and their variances with degrees of freedom, as `find_ratios` does.

    `logs` is (gate runs, runs, arms, blocks). That it is the same is checked on `CHECKED` gate runs of each case.
    """
    arms, blocks = logs.shape[2:]
    own, freedom = logs.var(axis=-1, ddof=1), float(blocks - 1)
    others = (own.sum(axis=-1, keepdims=True) - own) / (arms - 1)
    prior = min(MOST_SHARED, (arms - 1) * freedom / (1 + COMMON * (arms - 2)))
    with np.errstate(divide="ignore", invalid="ignore"):  # drawn blocks may all be equal
        noisier = fdtrc(freedom, prior, own / others) < PLAINLY_NOISIER
    value = np.where(noisier, own, (freedom * own + prior * others) / (freedom + prior)) / blocks
    free = np.where(noisier, freedom, freedom + prior)
    parts = value / np.array([kept**2] * kept + [1])[:, np.newaxis]
    total = parts.sum(axis=1)
    variances = [(total, total**2 / (parts**2 / free).sum(axis=1))]
    means = logs.mean(axis=-1)
    if kept > 1:
        repeated = means[:, :kept].var(axis=1, ddof=1)
        runs = np.full_like(repeated, kept - 1)
        if arms_repeat:
            repeated = np.broadcast_to(repeated.mean(axis=1, keepdims=True), repeated.shape)
            runs = runs * arms / (1 + COMMON * (arms - 1))
        variances.append((repeated * (1 / kept + 1), runs))
    return means[:, -1] - means[:, :kept].mean(axis=1), variances


def _compared(logs: Floats, others: dict[str, Floats], kept: int) -> RunComparison:
    """Return the comparison of `kept` runs with one; arrays are (runs, baseline and arms, blocks)."""
    names = [str(number) for number in range(logs.shape[1])]
    level = 1 - (1 - LEVEL) / len(names)
    watched = {
        name: [
            {what: Measured(float(np.exp(run[number].mean())), np.exp(run[number]).tolist()) for what, run in of_run}
            for of_run in (list(zip(others, runs, strict=True)) for runs in zip(*others.values(), strict=True))
        ]
        for number, name in enumerate(names)
    }
    own = ArmResults(None, None, [])
    nothing = Outputs(same=0, differing=[], undetermined=[], kept=False)
    rates, ratios = _in_all_runs(names, logs, kept), _in_all_runs(names[1:], logs[:, 1:] - logs[:, :1], kept)
    measured = {
        name: ArmInRuns(
            baseline=names[0],
            is_baseline=name == names[0],
            facts=(own, own),
            outputs=nothing,
            prompts=0,
            doubt=None,
            rate=rates[name],
            speedup=ratios.get(name),
            watched=watched[name],
        )
        for name in names
    }
    arms = compare_arms(measured, of_a=kept, level=level)
    return RunComparison(
        a=_facts("A"),
        b=_facts("B"),
        on_trust=[],
        changed=[],
        arms=arms,
        only_in_a=[],
        only_in_b=[],
        lossless_b=[],
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


def _in_all_runs(names: list[str], logs: Floats, kept: int) -> dict[str, InAllRuns]:
    measured = {}
    for number, name in enumerate(names):
        runs = [Measured(float(np.exp(run[number].mean())), np.exp(run[number]).tolist()) for run in logs]
        measured[name] = without_prompts(runs, kept)
    return measured


if __name__ == "__main__":
    main()
