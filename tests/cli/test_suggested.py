"""The experiment that a run suggests is its own recipe, and a command that works."""

from __future__ import annotations

import json
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchctl.analysis.next_experiment import YOUR_PROMPTS
from benchctl.data.manifest import Manifest
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.measurement.plan import keep_only, make_plan, with_blocks
from benchctl.measurement.requested import requested_recipe
from benchctl.measurement.resume import recipe_of
from benchctl.prompts.load import load_suite
from benchctl.recipes.adapters import adapter_of
from benchctl.recipes.from_options import RecipeOptions
from benchctl.recipes.schema import Recipe
from benchctl.recipes.speculation import NEEDS_DRAFT_MODEL
from tests.benchctl_process import benchctl
from tests.kept_runs import ROOT, RUNS

KEPT = [run.relative_to(ROOT) for run in RUNS]
OPTIONS = {
    "--only",
    "--blocks",
    "--prompts",
    "--limit",
    "--type",
    "--depth",
    "--models-dir",
    "--engine-binary",
    "--output",
    "--on",
}


def options_of(command: str) -> dict[str, str]:
    """The options of a suggested `benchctl run RUN …`."""
    words = shlex.split(command)
    result = dict(zip(words[3::2], words[4::2], strict=True))
    assert words[:2] == ["benchctl", "run"] and result.keys() <= OPTIONS, command
    return result


def planned(command: str, folder: Path) -> Recipe:
    """The recipe that a suggested command measures."""
    options = options_of(command)
    prompts = options.get("--prompts")
    requested = RecipeOptions(
        subject=[shlex.split(command)[2]],
        types=[options["--type"]] if "--type" in options else None,
        depth=options.get("--depth"),
        prompts=str(folder / YOUR_PROMPTS) if prompts == YOUR_PROMPTS else prompts,
        limit=int(options["--limit"]) if "--limit" in options else None,
    )
    recipe = requested_recipe(requested, Path("results")).recipe
    recipe = keep_only(recipe, [options["--only"]]) if "--only" in options else recipe
    return with_blocks(recipe, options["--blocks"]) if "--blocks" in options else recipe


def must_fit(recipe: Recipe, manifest: Manifest) -> None:
    """Every arm is one that the recorded engine and models can run."""
    engine_types = set(manifest.engine.speculation_types)
    configured = adapter_of(recipe.engine.kind)
    for arm in recipe.arms:
        types = arm.speculation.types if arm.speculation else []
        assert configured.launched and set(types) <= engine_types, arm.name
        pair = next((setup.models for setup in recipe.setups if setup.name == arm.setup), recipe.models)
        assert pair.draft is not None or not set(types) & NEEDS_DRAFT_MODEL
        assert recipe.arm(recipe.compared[arm.name].baseline).speculation is None


@pytest.mark.parametrize("kept", KEPT, ids=str)
def test_every_suggestion_of_a_kept_run_is_planned(kept: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    run = open_run(kept)
    assert run.manifest is not None
    (tmp_path / YOUR_PROMPTS).write_text('{"prompt": "Say hello."}\n')
    decision = analyse_run(run).decision
    if decision is None or decision.next is None:
        return
    if decision.next.command.startswith("benchctl verify-lossless "):
        assert shlex.split(decision.next.command)[2] == str(kept)
        return
    recipe, stored = planned(decision.next.command, tmp_path), recipe_of(run)
    suite = load_suite(recipe.prompts.suite, recipe_folder=tmp_path)
    assert make_plan(recipe, suite.select(recipe.prompts.tasks, recipe.prompts.limit))
    must_fit(recipe, run.manifest)
    if not stored.setups:  # else they are those of the first setup, which need not be among the suggested ones
        assert (recipe.engine, recipe.models) == (stored.engine, stored.models)
    assert recipe.sampling == stored.sampling
    assert all(setup in stored.setups for setup in recipe.setups)


@pytest.mark.parametrize("kept", KEPT, ids=str)
@pytest.mark.parametrize("kind", ["ngram-simple", "draft-simple", "prompt-lookup"])
def test_other_arms_take_the_place_of_a_run_s_own(kept: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine, models, quantization, arguments, prompts and every condition stay."""
    monkeypatch.chdir(ROOT)
    run = open_run(kept)
    assert run.manifest is not None
    stored = recipe_of(run)
    if kind not in run.manifest.engine.speculation_types or (kind == "draft-simple" and stored.models.draft is None):
        return
    depth = "" if kind == "ngram-simple" else " --depth 3"
    recipe = planned(f"benchctl run {kept} --type {kind}{depth}", Path())
    must_fit(recipe, run.manifest)
    assert recipe.model_dump(exclude={"arms", "setups"}) == stored.model_dump(exclude={"arms", "setups"})
    groups = {arm.group for arm in stored.compared.values()}
    assert {arm.group for arm in recipe.compared.values()} == groups
    new = [arm for arm in recipe.arms if arm.speculation]
    assert all(arm.speculation and arm.speculation.types == (kind,) for arm in new)
    assert len(new) == (len(stored.setups) if stored.setups and kind == "draft-simple" else len(groups))
    assert len({arm.name for arm in recipe.arms}) == len(recipe.arms)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="the engine of these runs needs torch")
@pytest.mark.parametrize("kept", [kept for kept in KEPT if kept.parts[1].startswith("self-speculation")], ids=str)
def test_a_suggestion_for_bundled_models_is_dry_run(kept: Path) -> None:
    decision = analyse_run(open_run(ROOT / kept)).decision
    if decision is None or decision.next is None or YOUR_PROMPTS in decision.next.command:
        return
    done = benchctl(*shlex.split(decision.next.command)[1:], "--dry-run", "--json", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cells"]
