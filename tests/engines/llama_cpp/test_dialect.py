from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.command import command_line
from benchctl.engines.llama_cpp.probe import SERVER_FLAGS, Flags, normalise, parse_help
from benchctl.engines.llama_cpp.spec_flags import requested_of
from benchctl.models.files import ResolvedPair
from benchctl.recipes.speculation import SPECULATION_TYPES
from tests.engines.cells import HERE, arm_of


@pytest.fixture(scope="module")
def current() -> Flags:
    return parse_help((HERE / "data" / "help_current.txt").read_text())


@pytest.fixture(scope="module")
def legacy() -> Flags:
    return parse_help((HERE / "data" / "help_legacy.txt").read_text())


def test_a_removed_flag_in_new_help_does_not_make_it_old(current: Flags) -> None:
    removed = current.get("--draft-max")
    assert removed is not None
    assert removed.replacement == "--spec-draft-n-max or --spec-ngram-mod-n-max"
    assert "--draft-max" not in current
    assert current.dialect == "current"
    assert "--draft-max" not in current.names()


def test_the_old_dialect_speculates_with_a_draft_model_alone(legacy: Flags) -> None:
    assert legacy.dialect == "legacy"
    assert legacy.speculation_names() == {"draft-simple": ""}
    assert "--draft-max" in legacy


def test_every_type_of_the_help_is_known(current: Flags) -> None:
    assert current.speculation_names() == {name: name for name in SPECULATION_TYPES}


def test_the_name_of_spring_2026_is_understood() -> None:
    text = (HERE / "data" / "help_current.txt").read_text()
    flags = parse_help(re.sub(r"(--spec-type) \S+", r"\1 [none|draft|ngram-cache]", text))
    assert flags.speculation_names() == {"draft-simple": "draft", "ngram-cache": "ngram-cache"}


def help_of(name: str) -> Flags:
    return parse_help((HERE / "data" / f"help_{name}.txt").read_text())


def test_a_type_that_benchctl_does_not_know_is_listed_after_those_that_it_knows() -> None:
    text = (HERE / "data" / "help_current.txt").read_text()
    flags = parse_help(text.replace("--spec-type none,", "--spec-type none,draft-mtp-adaptive,"))
    assert list(flags.speculation_names()) == [*SPECULATION_TYPES, "draft-mtp-adaptive"]


def test_builds_of_early_2026_have_lookups_and_draft_with_a_draft_model_alone() -> None:
    flags = help_of("early_2026")
    assert (flags.dialect, flags.takes_several_types) == ("legacy", False)
    assert flags.speculation_names()["draft-simple"] == ""
    assert flags.speculation_names()["ngram-map-k"] == "ngram-map-k"


NGRAMS = {"ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"}
BUILDS: dict[str, tuple[str, bool, set[str]]] = {
    "0.3.2": ("legacy", False, set()),
    "0.3.16": ("legacy", False, {"draft-simple"}),
    "0.3.22": ("current", False, {"draft-simple"} | NGRAMS),
    "0.3.33": ("current", True, {"draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash"} | NGRAMS),
}
"""By version of llama-cpp-python (llama.cpp 74d73dc, 4227c9b, 63d93d1, 78d2f52): what its help tells.
The texts are printed by the parser in its `common/arg.cpp`, linked into a program of its own."""


@pytest.mark.parametrize("version", BUILDS)
def test_two_years_of_builds_are_read_and_commanded(version: str, any_pair: ResolvedPair) -> None:
    flags = help_of(version)
    dialect, several, types = BUILDS[version]
    assert set(flags.names()) >= SERVER_FLAGS
    assert (flags.dialect, flags.takes_several_types) == (dialect, several)
    assert set(flags.speculation_names()) == types
    spec = LlamaCppSpec(device="cpu", threads=2)
    for arm in (arm_of(), *(arm_of(name) for name in sorted(types))):
        argv = command_line(Path("llama-server"), flags, spec, arm, any_pair)
        assert [word for word in argv[1:] if re.match("--?[a-z]", word) and word not in flags] == []
        assert requested_of(argv, flags).types == (arm.speculation.types if arm.speculation else ())


def test_ik_llama_cpp_s_own_help_is_read() -> None:
    """Printed by the llama-server of ik-llama-cpp-python 0.1.5, which then ends with status 1."""
    flags = help_of("ik")
    assert (flags.dialect, flags.types_take_keys, flags.takes_several_types) == ("ik", False, False)
    names = flags.speculation_names()
    assert (names["draft-simple"], names["draft-mtp"]) == ("", "")
    assert {"ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"} <= set(names)


def test_ik_llama_cpp_indents_its_options_and_takes_settings_with_the_type() -> None:
    flags = help_of("ik_new")
    assert (flags.dialect, flags.types_take_keys) == ("ik", True)
    assert {"--model", "--ctx-size", "--port", "--parallel", "--batch-size", "--host"} <= set(flags.names())
    assert flags.speculation_names()["draft-mtp"] == "mtp"
    assert "suffix" in flags.speculation_names()
    assert "--model-url" not in flags.names(), "it goes on with a description"


def test_aliases_defaults_and_metavars(current: Flags) -> None:
    model = current.get("-md")
    assert model is not None
    assert model.names == ("--spec-draft-model", "-md", "--model-draft")
    assert model.metavar == "FNAME"
    depth = current.get("--spec_draft_n_max")
    assert depth is not None
    assert depth.default == 3
    assert current.first("--no-such", "--no-webui") == "--no-webui"
    assert normalise("--a_b") == "--a-b"
    assert normalise("-a_b") == "-a_b"


@pytest.mark.parametrize("text", ["", "usage: true [ignored]\n", "\x00\xff---\n-", "- - -\n--\n"])
def test_other_text_has_no_flags_of_a_server(text: str) -> None:
    assert "--model" not in parse_help(text)
    assert parse_help(text).speculation_names() == {}
