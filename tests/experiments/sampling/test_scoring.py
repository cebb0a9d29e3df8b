"""Sampled answers of the real engine, scored on the target alone with the draft beside it: right ones pass."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchctl.experiments.sampling import scoring
from benchctl.experiments.sampling.draw import run_check, sampled_recipe
from benchctl.experiments.sampling.judge import ArmSampling, sampling_verdict
from benchctl.experiments.sampling.plan import CheckPlan
from benchctl.experiments.sampling.scoring import sampler_of, score_check
from benchctl.experiments.sampling.stored import ANSWERS, SCORES, open_check
from benchctl.experiments.sampling.tokens import DRAFT, FAR, TERMS
from benchctl.measurement.prepare import Prepared, prepare
from benchctl.measurement.progress import RunProgress
from benchctl.recipes.load import load_recipe
from benchmarks.bundled_runs import bundled_recipe, drafting, plain
from tests.resealed import reseal

pytestmark = [pytest.mark.slow, pytest.mark.engine]
FEW = 400
"""Tokens of an arm that are scored where a sampler is far off."""
SIZE = CheckPlan(seeds=24, tokens=24, prompts=2)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Prepared, Path, Path]:
    """A check at temperature 1.2 whose tokens are scored, and one at 0.4."""
    folder = tmp_path_factory.mktemp("sampled")
    checks = []
    for heat in (0.4, 1.2):
        recipe = sampled_recipe(
            bundled_recipe([plain("baseline"), drafting("spec")]), CheckPlan(**vars(SIZE) | {"temperature": heat})
        )
        prepared = prepare(recipe, recipe_folder=folder)
        checks.append(run_check(prepared, SIZE, folder / str(heat), RunProgress(), ["test"]))
    assert score_check(checks[1], prepared) is None
    return prepared, checks[1], checks[0]


def test_a_right_sampler_passes_and_its_power_is_told(drawn: tuple[Prepared, Path, Path]) -> None:
    prepared, warm, _ = drawn
    arm = verdict(warm)
    assert arm.verdict == "no difference found"
    assert {test.name for test in arm.tests} >= {*TERMS, FAR}
    assert arm.token_power is not None
    assert arm.token_power.tokens > 1_000
    assert arm.token_power.temperature is not None
    assert arm.token_power.residual is not None, "the draft was asked, too"
    assert "own distribution" in arm.reason
    before = (warm / SCORES).read_bytes()
    assert score_check(warm, prepared) is None
    assert (warm / SCORES).read_bytes() == before, "what is scored is not scored again"
    assert sampler_of(prepared).truncates_first


def test_scores_that_cannot_be_read_are_named(drawn: tuple[Prepared, Path, Path], tmp_path: Path) -> None:
    check = Path(shutil.copytree(drawn[1], tmp_path / "check"))
    (check / SCORES).write_text('{"half')
    data = open_check(reseal(check))
    assert data.scores == []
    assert any(SCORES in finding for finding in data.integrity.findings)


def test_a_colder_sampler_is_found_by_its_tokens(
    drawn: tuple[Prepared, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared, warm, cold = drawn
    monkeypatch.setattr(scoring, "TOKENS", FEW)
    arm = verdict(swapped(prepared, warm, cold, tmp_path / "arm", lambda name: name == "spec"))
    assert arm.verdict == "difference found"
    assert "temperature" in {test.name for test in arm.tests if test.adjusted <= 0.01}
    assert "Its tokens are likelier" in arm.reason


def test_a_baseline_that_is_not_what_was_read_makes_the_tokens_say_nothing(
    drawn: tuple[Prepared, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared, warm, cold = drawn
    monkeypatch.setattr(scoring, "TOKENS", FEW)
    arm = verdict(swapped(prepared, warm, cold, tmp_path / "both", lambda _: True))
    assert arm.token_power is None
    assert "the baseline's own tokens" in str(arm.unscored)
    assert not {test.name for test in arm.tests} & {*TERMS, FAR}


def test_every_arm_is_scored_beside_the_draft_of_its_own_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that is the target itself gives every token the target's own probability; the other one does not."""
    monkeypatch.setattr(scoring, "TOKENS", 30)
    (tmp_path / "r.yaml").write_text(
        "name: drafts\nengine: {device: cpu, context: 1024, threads: 1}\nprompts: {suite: tiny.json, limit: 1}\n"
        "models: {target: {source: 'bundled:tiny-hybrid'}}\nmatrix: {models.draft: {small: {source: "
        "'bundled:tiny-hybrid-draft'}, itself: {source: 'bundled:tiny-hybrid'}}}\n"
        "arms: [{name: baseline}, {name: spec, speculation: {type: draft-simple, max: 2}}]\n"
    )
    plan = CheckPlan(seeds=2, tokens=16, prompts=1, temperature=1.2)
    prepared = prepare(sampled_recipe(load_recipe(tmp_path / "r.yaml"), plan), recipe_folder=tmp_path)
    folder = run_check(prepared, plan, tmp_path, RunProgress(), ["test"])
    assert score_check(folder, prepared) is None
    spread = {
        arm: sum(score.sums[DRAFT].variance for score in open_check(folder).scores if score.arm == arm)
        for arm in ("spec-d_small", "spec-d_itself")
    }
    assert spread["spec-d_itself"] == pytest.approx(0, abs=1e-9)
    assert spread["spec-d_small"] > 0.1


def verdict(check: Path) -> ArmSampling:
    (arm,) = sampling_verdict(open_check(check)).arms
    return arm


def swapped(prepared: Prepared, warm: Path, cold: Path, to: Path, chosen: Callable[[str], bool]) -> Path:
    """The check at 1.2 with the chosen arms' answers of that at 0.4, scored as one at 1.2.

    The answers that stay keep their scores.
    """
    shutil.copytree(warm, to, ignore=shutil.ignore_patterns(".lock"))

    def lines(file: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in file.read_text("ascii").splitlines()]

    for name, replaced in ((ANSWERS, lines(cold / ANSWERS)), (SCORES, [])):
        mixed = [line for line in lines(warm / name) if not chosen(line["arm"])]
        mixed += [row for row in replaced if chosen(row["arm"])]
        (to / name).write_text("".join(json.dumps(one) + "\n" for one in mixed), "ascii")
    reseal(to)
    assert score_check(to, prepared) is None
    return to
