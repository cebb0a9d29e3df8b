"""Faults of builds that are known: the table, and which arms ask for one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchctl.engines.base import Capabilities
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.faults import all_faults, faults_of_arm, faults_of_build
from benchctl.engines.llama_cpp.installation import check
from benchctl.engines.llama_cpp.probe import parse_help
from benchctl.engines.registry import FoundEngine
from benchctl.measurement.preflight import engine_faults
from benchctl.measurement.prepare import prepare
from benchctl.models.files import ResolvedPair
from benchctl.recipes.load import load_recipe, shipped_recipes
from benchctl.recipes.speculation import SPECULATION_TYPES
from tests.engines.cells import HERE, arm_of

CURRENT = parse_help((HERE / "data" / "help_current.txt").read_text())
PINNED = Capabilities("llama.cpp", Path("s"), "bundled", None, "1", "0c1e570", tuple(SPECULATION_TYPES))


@pytest.fixture
def asked(any_pair: ResolvedPair) -> Any:
    def names(
        kind: str | None,
        architecture: str = "qwen35",
        slots: int = 1,
        memory: str = "hybrid",
        in_use: bool = False,
        **engine: Any,
    ) -> list[str]:
        pair = ResolvedPair(
            replace(any_pair.target, facts={"architecture": architecture}),
            replace(any_pair.target, facts={"memory": memory}),
        )
        arm = arm_of(kind, max=2) if kind and kind.startswith("draft") else arm_of(kind) if kind else arm_of()
        arm = arm.model_copy(update={"concurrency": slots})
        spec = LlamaCppSpec.model_validate(engine)
        return [fault.name for fault in faults_of_arm(arm, spec, pair, PINNED, CURRENT, in_use=in_use)]

    return names


def test_an_arm_is_warned_of_what_it_asks_for_and_of_nothing_else(asked: Any) -> None:
    assert asked("draft-eagle3", slots=3) == asked("draft-mtp", slots=8) == ["crowd"]
    assert asked("draft-mtp", slots=2) == asked("draft-simple", slots=8) == asked(None, slots=8) == []
    assert asked("draft-mtp", architecture="llama", slots=8) == []
    assert asked("draft-eagle3", prefix_caching=True) == ["host-cache"]
    assert asked("draft-mtp", prefix_caching=True) == asked("draft-eagle3") == []
    assert asked("draft-simple", args=["--slot-save-path", "x"]) == ["slot-files"]
    assert asked("draft-simple", memory="attention", args=["--slot-save-path", "x"]) == []
    assert asked("ngram-map-k", args=["--context-shift"]) == ["context-shift"]
    assert asked("ngram-simple", args=["--context-shift"]) == []


def test_in_use_slots_caches_and_requests_are_any(asked: Any) -> None:
    assert asked("draft-eagle3", in_use=True) == ["crowd", "host-cache", "several-answers", "probabilities"]
    assert asked("draft-mtp", in_use=True, slots=2) == asked("draft-simple", in_use=True) == ["probabilities"]
    assert asked(None, in_use=True) == []


def test_a_build_outside_of_the_range_does_not_have_it() -> None:
    crowd = all_faults()[0]
    assert crowd.in_build("9632", "abc") and not crowd.in_build("9631", "abc")
    assert crowd.in_build("1", "abc") and crowd.in_build(None, None), "a build of unknown number may have it"
    fixed = msgspec.structs.replace(crowd, builds=(9632, 11000))
    assert fixed.in_build("10999", "abc") and not fixed.in_build("11000", "abc")
    assert fixed.in_build("11000", "0c1e57098"), "it was reproduced there"
    assert "this build" in crowd.sentence("0c1e57098") and "build 0c1e570" in crowd.sentence("abc")
    assert faults_of_build((), "1", "0c1e570") == []


def test_every_type_of_the_table_exists() -> None:
    for fault in all_faults():
        assert set(fault.types) <= {*SPECULATION_TYPES, "*"}
        assert fault.symptom.endswith(".") and fault.source and fault.reproduced


def test_no_shipped_recipe_has_so_many_requests_at_a_time_that_its_answers_are_wrong() -> None:
    (crowd,) = [fault for fault in all_faults() if fault.name == "crowd"]
    recipes = [load_recipe(path) for path in shipped_recipes().values()]
    arms = [arm for recipe in recipes for arm in recipe.arms if recipe.engine.kind == "llama.cpp" and arm.speculation]
    assert any(arm.concurrency >= crowd.slots for arm in arms), "there are crowds, of other types"
    assert all(
        arm.concurrency < crowd.slots for arm in arms if arm.speculation and crowd.concerns(arm.speculation.types)
    )


def test_the_doctor_names_them() -> None:
    engine = FoundEngine("llama.cpp", "PATH", "/nowhere", True, "v", "1", "0c1e570", ("draft-mtp",))
    (*_, found) = check([engine], other_engines=False)
    assert found.id == "engine.llama.cpp.faults" and found.state == "warn"
    assert "three requests" in found.seen and "--context-shift" not in found.seen


@pytest.mark.engine
def test_a_run_is_warned_before_it_starts(llama_server: Path, tmp_path: Path) -> None:
    recipe = load_recipe(shipped_recipes()["tiny-mtp"])
    crowd = recipe.model_copy(update={"arms": [arm.model_copy(update={"concurrency": 4}) for arm in recipe.arms]})
    prepared = prepare(crowd, recipe_folder=tmp_path, binary=str(llama_server))
    (fault,) = engine_faults(prepared)
    assert "silently wrong" in fault.sentence and "llama.cpp#28286" in fault.sentence
    assert "baseline" not in fault.arms
    listed = [fault.lacks for fault in engine_faults(prepared, in_use=True)]
    assert listed == [None, "log probabilities"], "as verify-stress asks"
