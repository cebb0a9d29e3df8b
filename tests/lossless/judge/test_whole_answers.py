"""Answers side by side, held against the lines of the kept runs: every arm beside its own baseline, nothing lost."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.lossless.judge.whole_answers import find_whole_answers
from tests.kept_runs import RUNS

OVER_AXES = [folder for folder in RUNS if json.loads((folder / "manifest.json").read_text("utf-8")).get("setups")]


def own_baselines(folder: Path) -> dict[str, str]:
    """Arm to baseline by the stored manifest alone: the arm marked as a baseline that has all of the keys in common."""
    arms = json.loads((folder / "manifest.json").read_text("utf-8"))["arms"]
    keys = ("group", "context_length", "concurrency", "rate", "temperature", "max_tokens")
    names = {tuple(arm.get(key) for key in keys): arm["name"] for arm in arms if arm["baseline"]}
    return {arm["name"]: names[tuple(arm.get(key) for key in keys)] for arm in arms}


def texts(folder: Path) -> dict[tuple[str, str, int], list[str]]:
    """Arm, task and index to the answers of all blocks."""
    result = defaultdict(list)
    for line in (folder / "records.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        if record.get("phase", "measure") == "measure" and not record.get("error"):
            result[record["label"], record["task"], record["prompt_idx"]].append(record["content"])
    return result


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.parent.name)
def test_every_arm_stands_beside_its_own_baseline(folder: Path) -> None:
    run = open_run(folder)
    contents, baselines = texts(folder), own_baselines(folder)
    checked: set[tuple[str, str, int]] = set()
    for answers in find_whole_answers(run, analyse_run(run)):
        prompt = (answers.task, answers.prompt_idx)
        for arm in answers.identical:
            assert answers.baseline in contents[baselines[arm], *prompt], (arm, prompt)
            assert set(contents[arm, *prompt]) == {answers.baseline}, f"{arm} is called identical to another text"
            checked.add((arm, *prompt))
        for diverging in answers.diverging:
            arm = diverging.comparison.arm
            assert diverging.complete, f"both answers of {arm} are kept"
            assert diverging.agreed + diverging.baseline in contents[baselines[arm], *prompt], (arm, prompt)
            assert diverging.agreed + diverging.arm in contents[arm, *prompt], (arm, prompt)
            assert diverging.baseline != diverging.arm
            checked.add((arm, *prompt))
        for comparison in answers.not_compared:
            checked.add((comparison.arm, *prompt))
        arms = [
            *answers.identical,
            *(row.comparison.arm for row in answers.diverging),
            *(o.arm for o in answers.not_compared),
        ]
        assert {baselines[arm] for arm in arms} == {answers.baseline_arm}
    stored = json.loads((folder / "manifest.json").read_text("utf-8"))["arms"]
    baseline_names = {arm["name"] for arm in stored if arm["baseline"] or arm.get("again")}
    assert checked == {key for key in contents if key[0] not in baseline_names}


@pytest.mark.parametrize("folder", OVER_AXES, ids=lambda path: path.parent.name)
def test_over_axes_the_probabilities_are_those_of_the_arms_own_target(folder: Path) -> None:
    run = open_run(folder)
    groups = {arm["name"]: arm["group"] for arm in json.loads((folder / "manifest.json").read_text("utf-8"))["arms"]}
    compared = 0
    for answers in find_whole_answers(run, analyse_run(run)):
        for diverging in answers.diverging:
            divergence = diverging.comparison.divergence
            assert divergence is not None
            readings: dict[tuple[str, int], dict[str, Any]] = {}
            for position in _positions(folder, groups[diverging.comparison.arm]):
                place = [position[key] for key in ("task", "prompt_idx", "index", "token", "rival")]
                if place == [
                    answers.task,
                    answers.prompt_idx,
                    divergence.index,
                    divergence.baseline_token,
                    divergence.arm_token,
                ]:
                    readings |= {(reading["shape"], reading["width"]): reading for reading in position["readings"]}
            shapes = {(shape.shape, shape.width) for shape in divergence.shapes}
            assert {
                (probability.shape, probability.width) for probability in diverging.probabilities
            } == shapes & readings.keys()
            for row in diverging.probabilities:
                reading = readings[row.shape, row.width]
                assert row.likeliest == reading["likeliest"]
                expected = [None if reading[key] is None else math.exp(reading[key]) for key in ("token", "rival")]
                assert [row.baseline, row.arm] == expected
                compared += 1
    assert compared or not [*folder.glob("scores-*.json")]


def _positions(folder: Path, group: str) -> list[dict[str, Any]]:
    """What the target of a group reads at divergences."""
    file = folder / f"scores-{group}.json"
    return list(json.loads(file.read_text("utf-8"))["positions"]) if file.exists() else []
