from __future__ import annotations

import re

import pytest

from benchctl.engines.llama_cpp.probe import Flags, normalise, parse_help
from benchctl.recipes.speculation import SPECULATION_TYPES
from tests.engines.cells import HERE


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
