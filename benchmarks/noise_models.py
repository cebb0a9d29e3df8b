"""False claims and real gains found under many kinds of noise, with and without disturbed cells; other prompts.

    python -m benchmarks.noise_models

A run is the logarithms of its cells' paces, in the order in which a real run measures them (`mirrored`). `kept` judges
all cells, `left out` all but disturbed ones (`Frame.disturbed`), and `shipped` measures those once more at the end of a
fixed number of blocks. All share variances and claim by the interval of all claims (Bonferroni). False: the share of
runs with equal arms in which any is called faster or slower, the highest of 1, 2, 4 and 8 arms. Found: how often a gain
of 5 or 10 % of an arm, alone or among four, is claimed. `auto` looks after every block from the third to the twentieth;
unlike the program it keeps measuring decided arms, and does not wait until the fastest arm is known.
Some runs of every case are judged by the program itself, too, which must agree.

`other_prompts`: how often `like_these` holds the pooled speed-up of the population that a run's prompts were drawn
from: gains ± 25 % around their task's, lengths log-normal with `tokens_sd`.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, stdtr, stdtrit

from benchctl.analysis.frame import DISTURBED, ENOUGH_CELLS, OUTLYING, make_frame
from benchctl.analysis.precision import NEAR
from benchctl.analysis.result import MIN_BLOCKS
from benchctl.analysis.statistics import (
    COMMON,
    LEVEL,
    LOOK_LEVEL,
    MOST_SHARED,
    PLAINLY_NOISIER,
    pooled_spread,
)
from benchctl.lossless.judge.run import analyse_run
from benchctl.measurement.plan import mirrored
from benchmarks.keep import keep
from benchmarks.synthetic_run import BASELINE, Answer, baseline_arm, speculating_arm, synthetic_run

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
MODELS = {
    "independent": "2 %",
    "autoregressive": "0.9 from cell to cell, 3 %, and 1 %",
    "slow cells": "15 % of cells at three quarters of the pace, and 2 %",
    "slow cells, quiet": "the same, and 1 %",
    "slow cells, sticky": "the same states, which stay with 0.85, and 2 %",
    "thermal": "15 % slower by the end of the run, and 2 %",
    "cool start": "each block begins 10 % faster, and 2 %",
    "baseline 2x": "the baseline twice as noisy as the arms' 2 %",
    "baseline 3x": "three times",
    "heavy-tailed": "Student's t with 3 degrees of freedom, 3 %",
}
NOISE, SLOW, SHARE = 0.02, np.log(0.75), 0.15
MOST = 20
CHECKED = 2
"""Runs of a case of which the program itself is asked."""
NEARLY = 0.3
"""The logarithm of a p-value over the limit for a claim may differ by so much."""


def main() -> None:
    """Simulate and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4000, help="simulated runs of each case")
    runs = parser.parse_args().runs
    rng = np.random.default_rng(20261127)
    cases = [
        {"noise": noise, "is": text, "rule": rule}
        | _case(noise, runs, rng, leave_out=rule != "kept", repeat=rule == "shipped")
        for noise, text in MODELS.items()
        for rule in ("kept", "left out", "shipped")
    ]
    keep("noise_models", {"runs_a_case": runs, "cases": cases, "other_prompts": _other_prompts(runs // 4, rng)})


def _case(noise: str, runs: int, rng: np.random.Generator, *, leave_out: bool, repeat: bool) -> dict[str, Any]:
    """Return the shares, in percent, with a fixed number of blocks and with `auto`."""
    results: dict[str, Any] = {}
    for count in (3, 5, 6, 8):
        false = []
        for arms in (1, 2, 4, 8):
            paces = _cells(noise, runs, arms, count, rng, repeat=repeat)
            claims = _claims(paces, leave_out)
            false.append(_percent((claims != 0).any(axis=1)))
            if leave_out:
                _check(paces)
        counts = results[f"fixed {count}"] = {"false": max(false)}
        for arms in (1, 4):
            for gain in (0.05, 0.1):
                paces = _cells(noise, runs, arms, count, rng, repeat=repeat)
                paces[:, 1] += np.log1p(gain)
                counts[f"found {100 * gain:g} % of {arms}"] = _percent(_claims(paces, leave_out)[:, 0] > 0)
    few = max(1, runs // 4)
    auto = [_auto(_cells(noise, few, arms, MOST, rng), leave_out) for arms in (1, 2, 4, 8)]
    counts = results["auto"] = {"false": max(_percent((words != 0).any(axis=1)) for words, _ in auto)}
    for arms in (1, 4):
        for gain in (0.05, 0.1):
            paces = _cells(noise, few, arms, MOST, rng)
            paces[:, 1] += np.log1p(gain)
            words, blocks = _auto(paces, leave_out)
            counts[f"found {100 * gain:g} % of {arms}"] = _percent(words[:, 0] > 0)
            counts[f"blocks, {100 * gain:g} % of {arms}"] = round(float(blocks[:, 0].mean()), 1)
    return results


def _cells(noise: str, runs: int, arms: int, blocks: int, rng: np.random.Generator, *, repeat: bool = False) -> Floats:
    """Return the logarithms of the cells' paces, (runs, baseline and arms, blocks).

    `repeat`: disturbed ones are measured once more.
    """
    planned = (arms + 1) * blocks
    count = 2 * planned if repeat else planned  # a cell's second time comes after all first ones
    logs = (0.01 if noise in ("autoregressive", "slow cells, quiet") else NOISE) * rng.standard_normal((runs, count))
    if noise == "autoregressive":
        state = rng.standard_normal((count, runs))
        for number in range(1, count):
            state[number] = 0.9 * state[number - 1] + (1 - 0.9**2) ** 0.5 * state[number]
        logs += 0.03 * state.T
    elif noise.startswith("slow cells"):
        slow = rng.random((runs, count)) < SHARE
        if noise == "slow cells, sticky":
            stays = rng.random((runs, count)) < 0.85
            for number in range(1, count):
                slow[:, number] = np.where(stays[:, number], slow[:, number - 1], slow[:, number])
        logs += SLOW * slow
    elif noise == "thermal":
        logs += np.log(0.85) * np.arange(count) / (planned - 1)
    elif noise == "cool start":
        logs += np.log(1.1) * np.exp(-(np.arange(count) % (arms + 1)) / 1.5)
    elif noise == "heavy-tailed":
        logs = 0.03 * rng.standard_t(3, (runs, count)) / 3**0.5
    logs = logs.reshape(runs, -1, blocks, arms + 1)
    paces = np.empty((runs, logs.shape[1], arms + 1, blocks))
    for block in range(blocks):
        paces[:, :, mirrored(range(arms + 1), block), block] = logs[:, :, block]
    if noise.startswith("baseline"):
        paces[:, :, 0] *= int(noise[-2])
    first: Floats = paces[:, 0]
    return np.where(_disturbed(first), paces[:, 1], first) if repeat else first


def _disturbed(paces: Floats) -> Booleans:
    """Return `Frame.disturbed` of runs in which all prompts of a cell are alike, (runs, baseline and arms, blocks)."""
    slower = np.median(paces, axis=2, keepdims=True) - paces
    mad = np.median(np.abs(slower), axis=(1, 2), keepdims=True)
    disturbed: Booleans = (slower > np.maximum(-np.log1p(-DISTURBED), OUTLYING / 0.6745 * mad)) & (
        paces.shape[2] >= ENOUGH_CELLS
    )
    return disturbed


def _means(paces: Floats, leave_out: bool) -> tuple[Floats, Floats, Floats]:
    """Return the mean logarithm of every arm's ratios, its variance and degrees of freedom (0: none), (runs, arms)."""
    out = _disturbed(paces) if leave_out else np.zeros(paces.shape, dtype=np.bool_)
    complete, ratios = ~(out[:, 1:] | out[:, :1]), paces[:, 1:] - paces[:, :1]
    count = complete.sum(axis=2)
    some = np.maximum(count, 1)
    mean = (ratios * complete).sum(axis=2) / some
    variances = ((ratios - mean[..., np.newaxis]) ** 2 * complete).sum(axis=2) / np.maximum(count - 1, 1)
    freedom = np.where(count >= MIN_BLOCKS, count - 1.0, 0.0)
    other_freedom = freedom.sum(axis=1, keepdims=True) - freedom
    number = (freedom > 0).sum(axis=1, keepdims=True) - (freedom > 0)
    weighted = variances * freedom
    shared = (weighted.sum(axis=1, keepdims=True) - weighted) / np.maximum(other_freedom, 1)
    prior = np.minimum(MOST_SHARED, other_freedom / (1 + COMMON * np.maximum(number - 1, 0)))
    with np.errstate(divide="ignore", invalid="ignore"):
        keeps_own = (other_freedom == 0) | (fdtrc(np.maximum(freedom, 1), prior, variances / shared) < PLAINLY_NOISIER)
    value = np.where(keeps_own, variances, (weighted + prior * shared) / np.maximum(freedom + prior, 1))
    return mean, value / some, np.where((freedom == 0) | keeps_own, freedom, freedom + prior)


def _claims(paces: Floats, leave_out: bool) -> Floats:
    """Return what is claimed of every arm, 1 for faster and -1 for slower, (runs, arms)."""
    means, p = _p_values(paces, leave_out)
    return np.where(p < 1 - LEVEL, np.sign(means), 0.0)


def _p_values(paces: Floats, leave_out: bool) -> tuple[Floats, Floats]:
    """Return the mean logarithm of every arm, and its p-value times the number of arms (Bonferroni), (runs, arms)."""
    mean, variance, freedom = _means(paces, leave_out)
    with np.errstate(divide="ignore"):
        p = np.where(freedom > 0, 2 * stdtr(np.maximum(freedom, 1), -np.abs(mean) / variance**0.5), 1.0)
    return mean, p * p.shape[1]


def _auto(paces: Floats, leave_out: bool) -> tuple[Floats, Floats]:
    """Return what is claimed of every arm, and after how many blocks, (runs, arms)."""
    arms = paces.shape[1] - 1
    words, blocks = np.zeros((len(paces), arms)), np.full((len(paces), arms), float(MOST))
    undecided = np.ones(words.shape, dtype=np.bool_)
    tail = (1 - LOOK_LEVEL) / arms
    for count in range(MIN_BLOCKS, MOST + 1):
        mean, variance, freedom = _means(paces[:, :, :count], leave_out)
        error = np.where(freedom > 0, variance**0.5, np.inf)
        free = np.maximum(freedom, 1)
        apart = np.abs(mean) > stdtrit(free, 1 - tail / 2) * error
        within = np.abs(mean) + stdtrit(free, 1 - tail) * error <= np.log1p(NEAR)
        decided = undecided & (apart | within)
        words[decided & ~within] = np.sign(mean)[decided & ~within]
        blocks[decided] = count
        undecided &= ~decided
    return words, blocks


def _check(paces: Floats) -> None:
    """Have the program judge some of the runs, of two prompts.

    Its ratio is of sums, not the mean of logarithms: arms at the very limit of a claim are not compared.
    """
    means, p = (values[:CHECKED] for values in _p_values(paces, leave_out=True))
    for run, mean, adjusted in zip(paces[:CHECKED], means, p, strict=True):
        names = [BASELINE, *(f"arm{number}" for number in range(1, len(run)))]
        answers = [
            Answer(name, block, prompt, 101, float(np.exp(-run[arm, block]) * (prompt + 1)))
            for arm, name in enumerate(names)
            for block in range(run.shape[1])
            for prompt in range(2)
        ]
        identities = [baseline_arm(), *map(speculating_arm, names[1:])]
        data = synthetic_run(identities, answers, blocks=run.shape[1], prompts=2)
        assert (make_frame(data.records, data.manifest).disturbed == _disturbed(run[np.newaxis])[0]).all()
        words = {verdict.arm: verdict.speed for verdict in analyse_run(data).verdicts}
        for name, direction, value in zip(names[1:], mean > 0, adjusted, strict=True):
            if abs(np.log(value / (1 - LEVEL))) > NEARLY:
                claimed = ("faster" if direction else "slower") if value < 1 - LEVEL else None
                assert (words[name] if words[name] in ("faster", "slower") else None) == claimed, (words, adjusted)


def _other_prompts(runs: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return in which share of runs of five blocks `like_these` holds the truth, and half of its median width."""
    blocks, rows = 5, []
    spread = np.linspace(-0.25, 0.25, 2001)
    for tasks in (1, 3):
        of_task = np.linspace(-0.3, 0.3, tasks) if tasks > 1 else np.zeros(1)
        truth = float(1 / np.exp(-of_task[:, np.newaxis] - spread).mean())
        for prompts in (12, 24, 48):
            task = np.arange(prompts) % tasks
            for tokens_sd in (0.3, 1.0, 1.8):
                covered, halves = 0, []
                for _ in range(runs):
                    tokens = np.exp(tokens_sd * rng.standard_normal(prompts))
                    gain = np.exp(of_task[task] + rng.uniform(-0.25, 0.25, prompts))
                    process, request = rng.standard_normal((2, blocks, 1)), rng.standard_normal((2, blocks, prompts))
                    arm_s, base_s = np.exp(NOISE * process + 0.03 * request) * tokens
                    lengths = np.broadcast_to(tokens, base_s.shape)
                    sums = np.stack([lengths, arm_s / gain, lengths, base_s], axis=-1).reshape(-1, 4)
                    block, prompt = (index.ravel() for index in np.indices((blocks, prompts)))
                    ends = pooled_spread(sums, block, prompt, task[prompt])["like_these"]
                    covered += ends.low <= truth <= ends.high
                    halves.append((ends.high - ends.low) / 2 / truth)
                rows.append(
                    {
                        "tasks": tasks,
                        "prompts": prompts,
                        "tokens_sd": tokens_sd,
                        "holds_percent": 100 * covered / runs,
                        "half_percent": round(100 * float(np.median(halves)), 1),
                    }
                )
    return rows


def _percent(chosen: Booleans) -> float:
    return round(100 * float(chosen.mean()), 1)


if __name__ == "__main__":
    main()
