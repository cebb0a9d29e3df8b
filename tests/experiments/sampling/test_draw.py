"""Drawing the answers of a sampling check: what is asked, what is stored, what a failing engine costs; and for real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchctl.engines.base import Completion
from benchctl.errors import EngineError, StorageError, UsageError
from benchctl.experiments.sampling.draw import run_check, sampled_recipe
from benchctl.experiments.sampling.judge import sampling_verdict
from benchctl.experiments.sampling.plan import CheckPlan
from benchctl.experiments.sampling.stored import CHECK, latest_check, open_check
from benchctl.measurement.plan import SEED_BITS, spread_over_tasks, spread_seed
from benchctl.measurement.prepare import Prepared, prepare
from benchctl.measurement.progress import RunProgress
from benchctl.prompts.suite import Prompt, PromptItem
from benchctl.recipes.schema import Recipe, Sampling
from tests.measurement.toy_engine import ToyEngine, answer

pytestmark = pytest.mark.slow

PLAN = CheckPlan(seeds=4, tokens=8, prompts=2)


def real_recipe(**sampling: float) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "real",
            "engine": {"device": "cpu", "context": 2048, "threads": 1},
            "models": {
                "target": {"source": "bundled:tiny-hybrid"},
                "draft": {"source": "bundled:tiny-hybrid-draft"},
            },
            "prompts": {"suite": "tiny.json", "tasks": ["ja_chat", "translation_en_ja"], "limit": 1},
            "sampling": sampling,
            "arms": [{"name": "baseline"}, {"name": "spec", "speculation": {"type": "draft-simple", "max": 4}}],
        }
    )


@pytest.fixture
def prepared(tmp_path: Path, llama_server: Path) -> Callable[..., Prepared]:
    """Prepare a check of the bundled pair."""

    def make(plan: CheckPlan = PLAN, **sampling: float) -> Prepared:
        recipe = sampled_recipe(real_recipe(**sampling), plan)
        return prepare(recipe, recipe_folder=tmp_path, binary=str(llama_server))

    return make


def test_a_greedy_recipe_is_sampled_from_the_whole_vocabulary(recipe: Recipe) -> None:
    used = sampled_recipe(recipe, PLAN).sampling
    assert (used.temperature, used.top_k, used.top_p, used.max_tokens) == (0.8, 0, 1.0, 8)
    assert sampled_recipe(recipe, replace(PLAN, temperature=1.5)).sampling.temperature == 1.5


def test_a_sampling_recipe_keeps_its_own(recipe: Recipe) -> None:
    sampled = recipe.model_copy(update={"sampling": Sampling(temperature=0.6, top_k=40, top_p=0.9, ignore_eos=True)})
    used = sampled_recipe(sampled, PLAN).sampling
    assert (used.temperature, used.top_k, used.top_p, used.ignore_eos) == (0.6, 40, 0.9, False)


def test_the_baseline_comes_first_and_arms_can_be_chosen(recipe: Recipe) -> None:
    turned = recipe.model_copy(update={"arms": recipe.arms[::-1]})
    assert [arm.name for arm in sampled_recipe(turned, PLAN).arms] == ["baseline", "spec"]
    third = recipe.model_copy(update={"arms": [*recipe.arms, recipe.arms[-1].model_copy(update={"name": "third"})]})
    assert [arm.name for arm in sampled_recipe(third, PLAN, arms=["third"]).arms] == ["baseline", "third"]
    with pytest.raises(UsageError, match="no arm 'other'"):
        sampled_recipe(recipe, PLAN, arms=["other"])


def test_prompts_are_taken_from_the_tasks_in_turn() -> None:
    items = [PromptItem(task=task, prompt_idx=i, prompt=Prompt(prompt="p")) for task in "ab" for i in range(3)]
    assert [(task.task, task.prompt_idx) for task in spread_over_tasks(items, 3)] == [("a", 0), ("a", 1), ("b", 0)]
    assert len(spread_over_tasks(items, 99)) == 6


def number_of(seed: int) -> int:
    """The inverse of `spread_seed`: every step of it undone, last first."""
    mask = (1 << SEED_BITS) - 1

    def unshifted(mixed: int, shift: int) -> int:
        for _ in range(SEED_BITS // shift):
            mixed = seed_part ^ mixed >> shift
        return mixed

    seed_part = seed
    seed_part = unshifted(seed_part, 15)
    for factor, shift in ((0x735A2D97, 15), (0x21F0AAAD, 16)):
        seed_part = seed_part * pow(factor, -1, 1 << SEED_BITS) & mask
        seed_part = unshifted(seed_part, shift)
    return (seed_part - 0x7F4A7C15) * pow(0x9E3779B9, -1, 1 << SEED_BITS) & mask


def test_every_number_has_a_seed_of_its_own_far_from_its_neighbours() -> None:
    numbers = [*range(3000), *range(2**31 - 3000, 2**31), *(7919 * step for step in range(3000))]
    seeds = [spread_seed(number) for number in numbers]
    assert [number_of(seed) for seed in seeds] == numbers, "it can be undone, so no two numbers share a seed"
    assert all(0 <= seed < 2**SEED_BITS for seed in seeds)
    assert spread_seed(1) == spread_seed(1 + 2**31), "a check may begin near the largest seed of a recipe"
    assert (spread_seed(1), spread_seed(2)) == (1451690246, 1439541842), (
        "the same in every version: a check can be drawn again"
    )
    changed = [(spread_seed(number) ^ spread_seed(number + 1)).bit_count() for number in range(1000)]
    assert 14 < sum(changed) / len(changed) < 17, "half of the bits"


@pytest.mark.engine
def test_a_right_engine_passes_and_the_check_recomputes(prepared: Callable[..., Prepared], tmp_path: Path) -> None:
    plan = CheckPlan(seeds=30, tokens=12, prompts=2)
    folder = run_check(prepared(plan), plan, tmp_path, RunProgress(), ["benchctl"])
    assert latest_check(tmp_path) == folder
    data = open_check(folder)
    assert len(data.answers) == 2 * 2 * 30
    assert len({answer.seed for answer in data.answers}) == len(data.answers)
    assert [cell.status for cell in data.check.manifest.cells] == ["finished", "finished"]
    assert [cell.attestation.state for cell in data.check.manifest.cells if cell.attestation] == ["off", "active"]
    spec = sampling_verdict(data).arms[0]
    assert spec.verdict == "no difference found"
    assert spec.drafted
    assert sampling_verdict(open_check(folder)) == sampling_verdict(data)


@pytest.mark.engine
def test_a_wrong_temperature_is_found(prepared: Callable[..., Prepared], tmp_path: Path) -> None:
    plan = CheckPlan(seeds=40, tokens=12, prompts=2)
    right = open_check(run_check(prepared(plan), plan, tmp_path, RunProgress(), []))
    hot = replace(plan, temperature=2.5)
    hot_check = open_check(run_check(prepared(hot), hot, tmp_path, RunProgress(), []))
    mixed = [answer for answer in right.answers if answer.arm == "baseline"] + [
        answer for answer in hot_check.answers if answer.arm == "spec"
    ]
    spec = sampling_verdict(replace(right, answers=mixed)).arms[0]
    assert spec.verdict == "difference found"
    assert "differs already" in spec.reason


def toy(prepared: Prepared, engine: ToyEngine) -> Prepared:
    launches = {arm.name: engine.launch(arm, prepared.of_baseline.models) for arm in prepared.recipe.arms}
    setups = {name: replace(setup, engine=engine) for name, setup in prepared.setups.items()}
    return replace(prepared, launches=launches, setups=setups)


@pytest.mark.engine
def test_an_engine_that_fails_costs_its_arm(prepared: Callable[..., Prepared], tmp_path: Path) -> None:
    engine = ToyEngine(start_failures={"spec": EngineError("It fell.", kind="launch")})
    folder = run_check(toy(prepared(), engine), PLAN, tmp_path, RunProgress(), [])
    data = open_check(folder)
    assert data.check.manifest.status == "failed"
    assert len(data.answers) == 4 * 2
    result = sampling_verdict(data)
    assert result.failed_arms == {"spec": "It fell."}
    assert (result.arms[0].verdict, result.arms[0].tests) == ("undetermined", [])


@pytest.mark.engine
def test_without_a_baseline_nothing_more_is_drawn(prepared: Callable[..., Prepared], tmp_path: Path) -> None:
    engine = ToyEngine(start_failures={"baseline": EngineError("It fell.", kind="launch")})
    data = open_check(run_check(toy(prepared(), engine), PLAN, tmp_path, RunProgress(), []))
    assert engine.steps == ["baseline: start"]
    assert "It fell." in sampling_verdict(data).arms[0].reason


@pytest.mark.engine
def test_a_refused_request_and_withheld_ids(prepared: Callable[..., Prepared], tmp_path: Path) -> None:
    def answers(arm: str, number: int) -> object:
        if number == 2:
            raise EngineError("Too long.", kind="http")
        return answer(token_gap="withheld" if number == 1 else None, drafted=4)

    engine = ToyEngine(answers=answers)  # type: ignore[arg-type]
    data = open_check(run_check(toy(prepared(), engine), PLAN, tmp_path, RunProgress(), []))
    first, second = data.answers[:2]
    assert (first.token_ids, first.error) == (list(range(8)), None)
    assert (second.token_ids, second.error) == (None, "Too long.")
    assert engine.steps.count("baseline: recover") == 1


@pytest.mark.engine
def test_an_interrupted_check_says_so(prepared: Callable[..., Prepared], tmp_path: Path) -> None:
    def answers(arm: str, number: int) -> object:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_check(toy(prepared(), ToyEngine(answers=answers)), PLAN, tmp_path, RunProgress(), [])  # type: ignore[arg-type]
    data = open_check(latest_check(tmp_path))
    assert data.check.manifest.status == "interrupted"
    assert sampling_verdict(data).arms[0].verdict == "undetermined"


@pytest.mark.engine
def test_the_same_check_goes_on_where_it_was_broken_off(prepared: Callable[..., Prepared], tmp_path: Path) -> None:
    def until(last: int) -> Callable[[str, int], Completion]:
        def answers(arm: str, number: int) -> Completion:
            if arm == "spec" and number > last:
                raise KeyboardInterrupt
            return answer(drafted=None if arm == "baseline" else 4)

        return answers

    ready = prepared()
    for last in (3, 2):  # of eight: four seeds of two prompts
        with pytest.raises(KeyboardInterrupt):
            run_check(toy(ready, ToyEngine(answers=until(last))), PLAN, tmp_path, RunProgress(), [])
    engine = ToyEngine(answers=until(99))
    folder = run_check(toy(ready, engine), PLAN, tmp_path, RunProgress(), [])
    assert folder == latest_check(tmp_path)
    assert engine.steps == ["spec: start", "spec: attest(None)", *["spec: ask"] * 3, "spec: attest(12)", "spec: stop"]
    data = open_check(folder)
    assert len(list((tmp_path / "sampling").iterdir())) == 1
    assert data.check.manifest.status == "finished"
    assert [cell.status for cell in data.check.manifest.cells] == ["finished", *["interrupted"] * 2, "finished"]
    assert sampling_verdict(data).arms[0].tests, "it is judged by all that was drawn"
    assert len({answer.seed for answer in data.answers}) == len(data.answers) == 16
    complete = run_check(toy(ready, ToyEngine(answers=until(99))), PLAN, tmp_path, RunProgress(), [])
    assert complete != folder, "a finished check is drawn anew"
    assert {(answer.arm, answer.task, answer.seed) for answer in open_check(complete).answers} == {
        (answer.arm, answer.task, answer.seed) for answer in data.answers
    }


@pytest.mark.engine
def test_another_check_does_not_go_on_with_it(prepared: Callable[..., Prepared], tmp_path: Path) -> None:
    def broken(arm: str, number: int) -> Completion:
        raise KeyboardInterrupt

    ready = prepared()
    with pytest.raises(KeyboardInterrupt):
        run_check(toy(ready, ToyEngine(answers=broken)), PLAN, tmp_path, RunProgress(), [])
    cut_off = latest_check(tmp_path)
    larger = replace(PLAN, seeds=5)
    assert run_check(toy(ready, ToyEngine()), larger, tmp_path, RunProgress(), []) != cut_off


@pytest.mark.engine
def test_two_do_not_draw_one_check(prepared: Callable[..., Prepared], tmp_path: Path) -> None:
    ready = prepared()

    def answers(arm: str, number: int) -> Completion:
        with pytest.raises(StorageError, match=r"is writing"):
            run_check(toy(ready, ToyEngine()), PLAN, tmp_path, RunProgress(), [])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_check(toy(ready, ToyEngine(answers=answers)), PLAN, tmp_path, RunProgress(), [])


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not checked yet"):
        latest_check(tmp_path)
    with pytest.raises(UsageError, match="no sampling check"):
        open_check(tmp_path)
    (tmp_path / CHECK).write_text("{")
    with pytest.raises(StorageError):
        open_check(tmp_path)
    (tmp_path / CHECK).write_text('{"schema": 99}')
    with pytest.raises(StorageError, match="newer"):
        open_check(tmp_path)
