from __future__ import annotations

from typing import Any

import pytest

from benchctl.engines.llama_cpp.probe import Flags, parse_help
from benchctl.engines.llama_cpp.spec_flags import (
    RequestedSpeculation,
    deepest_draft,
    requested_of,
    speculation_args,
    speculation_problems,
    speculation_warnings,
    worth_trying,
)
from benchctl.recipes.speculation import SPECULATION_TYPES, Speculation
from tests.engines.cells import HERE

CURRENT = parse_help((HERE / "data" / "help_current.txt").read_text())
LEGACY = parse_help((HERE / "data" / "help_legacy.txt").read_text())
EARLY = parse_help((HERE / "data" / "help_early_2026.txt").read_text())
IK = parse_help((HERE / "data" / "help_ik_new.txt").read_text())
ADAPTIVE = parse_help(
    (HERE / "data" / "help_current.txt")
    .read_text()
    .replace("--spec-type none,", "--spec-type none,draft-mtp-adaptive,")
    + "--spec-adaptive-window N    window (default: 16)\n"
)
"""A build with a type that benchctl has never heard of (llama.cpp 27210)."""
DRAFTS = [name for name in SPECULATION_TYPES if name.startswith("draft-")]


def spec(type_: Any, **keys: Any) -> Speculation:
    return Speculation(type=type_, **keys)


@pytest.mark.parametrize("name", DRAFTS)
def test_draft_types_of_today(name: str) -> None:
    args = speculation_args(spec(name, max=4, min=1, p_min=0.5), CURRENT)
    assert args == [
        *("--spec-type", name),
        *("--spec-draft-n-max", "4", "--spec-draft-n-min", "1", "--spec-draft-p-min", "0.5"),
    ]


@pytest.mark.parametrize("name", ["ngram-simple", "ngram-map-k", "ngram-map-k4v"])
def test_the_depth_of_a_lookup_is_the_length_of_its_copy(name: str) -> None:
    args = speculation_args(spec(name, max=6, size_n=5, min_hits=2), CURRENT)
    flag = f"--spec-{name}"
    assert args == ["--spec-type", name, f"{flag}-size-m", "6", f"{flag}-size-n", "5", f"{flag}-min-hits", "2"]
    assert speculation_args(spec(name, size_m=9), CURRENT)[-2:] == [f"{flag}-size-m", "9"]


def test_ngram_mod_has_limits_of_its_own() -> None:
    args = speculation_args(spec("ngram-mod", max=32, size_n=16), CURRENT)
    assert args[2:] == [
        *("--spec-ngram-mod-n-max", "32", "--spec-ngram-mod-n-match", "16", "--spec-ngram-mod-n-min", "32"),
    ]
    assert speculation_args(spec("ngram-mod", max=64, min=2), CURRENT)[-2:] == ["--spec-ngram-mod-n-min", "2"]


def test_several_types_share_what_they_can_use() -> None:
    args = speculation_args(spec(["ngram-simple", "draft-simple"], max=4, min=1), CURRENT)
    assert args[:2] == ["--spec-type", "ngram-simple,draft-simple"]
    assert args[2:] == [
        *("--spec-ngram-simple-size-m", "4"),
        *("--spec-draft-n-max", "4", "--spec-draft-n-min", "1"),
    ]


def test_speculation_is_turned_off_explicitly_where_possible() -> None:
    assert speculation_args(None, CURRENT) == ["--spec-type", "none"]
    assert speculation_args(None, LEGACY) == []


def test_the_old_dialect_has_draft_flags_only() -> None:
    keys = spec("draft-simple", max=8, min=2, p_min=0.75)
    expected = ["--draft-max", "8", "--draft-min", "2", "--draft-p-min", "0.75"]
    assert speculation_args(keys, LEGACY) == expected
    (problem,) = speculation_problems(spec("ngram-simple"), LEGACY)
    assert "older dialect" in problem


def test_builds_of_early_2026_cut_a_lookup_at_two_limits() -> None:
    limits = ["--spec-ngram-size-m", "6", "--draft-max", "6"]
    assert speculation_args(spec("ngram-simple", max=6), EARLY) == ["--spec-type", "ngram-simple", *limits]
    assert deepest_draft(spec("ngram-simple"), EARLY) == 16, "48 copied, and 16 drafted at most"
    assert speculation_args(spec("draft-simple", max=4), EARLY) == ["--draft-max", "4"]
    (problem,) = speculation_problems(spec(["ngram-simple", "draft-simple"]), EARLY)
    assert "one type at a time" in problem


def test_settings_stand_with_the_type_where_the_build_wants_them_there() -> None:
    args = speculation_args(spec("draft-mtp", max=3, p_min=0.0), IK)
    assert args == ["--spec-type", "mtp:n_max=3,p_min=0"]
    assert requested_of(args, IK) == RequestedSpeculation(("draft-mtp",), may_hold_back=False)
    tuned = spec("suffix", options={"depth": 8, "spec-autotune": True})
    assert speculation_problems(tuned, IK) == []
    assert speculation_args(tuned, IK) == ["--spec-type", "suffix:depth=8", "--spec-autotune"], "a flag of its own"
    for options, message in (({"n_max": 8}, "use instead `max`"), ({"depth": "8,n_max=3"}, "without commas")):
        (problem,) = speculation_problems(spec("suffix", options=options), IK)
        assert message in problem


def test_a_type_that_the_binary_lists_is_run_with_its_own_settings() -> None:
    wanted = spec("draft-mtp-adaptive", max=4, options={"spec_adaptive_window": 8, "spec-draft-n-min": 1})
    assert speculation_problems(wanted, ADAPTIVE) == []
    assert speculation_args(wanted, ADAPTIVE) == [
        *("--spec-type", "draft-mtp-adaptive", "--spec-draft-n-max", "4"),
        *("--spec-adaptive-window", "8", "--spec-draft-n-min", "1"),
    ]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (spec("draft-mtp-adaptve"), "Did you mean 'draft-mtp-adaptive'?"),
        (spec("draft-mtp-adaptive", options={"spec-adaptive-windw": 8}), "Did you mean 'spec-adaptive-window'?"),
        (spec("draft-mtp-adaptive", options={"flash-attn": "off"}), "no such setting of speculation"),
        (spec("draft-mtp-adaptive", options={"spec-draft-n-max": 3}), "use arms[].speculation"),
        (spec("draft-simple", options={"spec-draft-n-min": 3}), "use arms[].speculation"),
        (spec("draft-mtp-adaptive", options={"spec-draft-model": "x"}), "use models.draft"),
    ],
)
def test_what_is_misspelt_or_no_setting_of_speculation_is_refused(wanted: Speculation, message: str) -> None:
    (problem,) = speculation_problems(wanted, ADAPTIVE)
    assert message in problem


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (spec("ngram-simple", p_min=0.5), "`p_min` has no effect on ngram-simple"),
        (spec("ngram-simple", min=1), "`min` has no effect"),
        (spec("ngram-mod", size_m=3), "it takes max, min, size_n"),
        (spec("ngram-cache", max=4), "it takes no keys"),
        (spec("draft-simple", size_n=3), "`size_n` has no effect"),
        (spec("draft-simple", max=2, min=3), "is above `max`"),
        (spec("ngram-map-k", max=2, size_m=3), "are the same thing"),
    ],
)
def test_what_cannot_be_done_is_refused(keys: Speculation, message: str) -> None:
    (problem,) = speculation_problems(keys, CURRENT)
    assert message in problem


@pytest.mark.parametrize("name", SPECULATION_TYPES)
def test_every_type_without_words_is_fine(name: str) -> None:
    assert speculation_problems(spec(name), CURRENT) == []


def test_a_lookup_that_can_never_draft_is_warned_of() -> None:
    (warning,) = speculation_warnings(spec("ngram-simple", max=4), CURRENT)
    assert "never drafts" in warning
    assert not list(speculation_warnings(spec("ngram-simple", max=4, size_n=4), CURRENT))
    assert not list(speculation_warnings(spec("ngram-simple"), CURRENT))
    assert len(list(speculation_warnings(spec("ngram-simple", min_hits=2), CURRENT))) == 1


@pytest.mark.parametrize(
    ("keys", "flags", "depth"),
    [
        (spec("draft-simple", max=7), CURRENT, 7),
        (spec("draft-simple"), CURRENT, 3),
        (spec("draft-simple"), LEGACY, 16),
        (spec("ngram-simple"), CURRENT, 48),
        (spec("ngram-map-k", size_m=900), CURRENT, 900),
        (spec("ngram-mod"), CURRENT, 64),
        (spec("ngram-cache"), CURRENT, 8),
        (spec(["ngram-simple", "draft-simple"], max=5), CURRENT, 5),
    ],
)
def test_the_deepest_draft(keys: Speculation, flags: Flags, depth: int) -> None:
    assert deepest_draft(keys, flags) == depth


@pytest.mark.parametrize(
    ("argv", "flags", "requested"),
    [
        (["x", "--spec-type", "none"], CURRENT, RequestedSpeculation((), False)),
        (["x", "-md", "d", "--spec-type", "none"], CURRENT, RequestedSpeculation((), False)),
        (
            ["x", "--spec-type", "ngram-simple,draft-simple"],
            CURRENT,
            RequestedSpeculation(("ngram-simple", "draft-simple"), False),
        ),
        (["--spec-type", "draft-mtp", "--spec-draft-n-min", "2"], CURRENT, RequestedSpeculation(("draft-mtp",), True)),
        (["--spec-type", "draft-mtp", "--spec-draft-p-min", "0"], CURRENT, RequestedSpeculation(("draft-mtp",), False)),
        (["x", "-md", "d", "--draft-p-min", "0.8"], LEGACY, RequestedSpeculation(("draft-simple",), True)),
        (["x", "-md", "d", "--draft-p-min", "0"], LEGACY, RequestedSpeculation(("draft-simple",), False)),
        (["x", "-md", "d"], LEGACY, RequestedSpeculation(("draft-simple",), True)),
        (["x", "--draft-p-min", "0"], LEGACY, RequestedSpeculation((), False)),
    ],
)
def test_the_requested_speculation_is_read_from_the_command_line(
    argv: list[str], flags: Flags, requested: RequestedSpeculation
) -> None:
    assert requested_of(argv, flags) == requested


def test_what_is_worth_trying_runs_on_this_binary_and_with_these_models() -> None:
    plain, with_draft = worth_trying(None, 0, CURRENT), worth_trying("qwen2", 0, CURRENT)
    assert all(speculation_problems(side, CURRENT) == [] for side in with_draft)
    assert {setting.type for setting in plain} == {name for name in SPECULATION_TYPES if name.startswith("ngram-")}
    assert with_draft[0] == spec("draft-simple", max=4)
    assert [side for side in with_draft if side.type != "draft-simple"] == plain
    assert {side.max for side in with_draft if side.type == "draft-simple"} >= {1, 2, 4, 8, 16}
    assert all(any(getattr(side, key) for side in with_draft) for key in ("p_min", "min", "size_n"))
    assert len({side.model_dump_json() for side in with_draft}) == len(with_draft)


def test_a_head_made_for_its_target_is_tried_as_what_it_is() -> None:
    with_head, older = worth_trying("eagle3", 0, CURRENT), worth_trying("llama", 0, LEGACY)
    assert {setting.type for setting in with_head if "draft" in setting.types[0]} == {"draft-eagle3"}
    assert [setting.max for setting in worth_trying(None, 1, CURRENT) if setting.type == "draft-mtp"] == [1, 2, 3]
    assert {setting.type for setting in older} == {"draft-simple"}, "the older dialect has no other"
