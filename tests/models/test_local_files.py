"""Hub files that lie on this machine already."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.errors import UsageError
from benchctl.models.hub import find_local
from benchctl.recipes.source import HubSource, parse_source

NAMED = HubSource("Org/Repo-GGUF", "sub/model-q8_0.gguf")
WHOLE = HubSource("pfnet/plamo-2-8b", None)


@pytest.mark.parametrize(
    "place",
    [
        "Org/Repo-GGUF/sub/model-q8_0.gguf",
        "Org/Repo-GGUF/model-q8_0.gguf",
        "Repo-GGUF/model-q8_0.gguf",
        "sub/model-q8_0.gguf",
        "model-q8_0.gguf",
    ],
)
def test_a_named_file_is_found_in_every_usual_place(tmp_path: Path, place: str) -> None:
    assert find_local(NAMED, tmp_path) is None
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    assert find_local(NAMED, tmp_path) == path


def test_the_most_exact_place_wins(tmp_path: Path) -> None:
    for location in ("model-q8_0.gguf", "Org/Repo-GGUF/model-q8_0.gguf"):
        path = tmp_path / location
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert find_local(NAMED, tmp_path) == tmp_path / "Org/Repo-GGUF/model-q8_0.gguf"


@pytest.mark.parametrize("name", ["plamo-2-8b.gguf", "PLaMo-2-8B-bf16.gguf", "plamo-2-8b/ggml-model.gguf"])
def test_without_a_file_name_the_repository_s_name_serves(tmp_path: Path, name: str) -> None:
    (tmp_path / "plamo-2-80b.gguf").touch()
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert find_local(WHOLE, tmp_path) == path


def test_several_candidates_are_listed_and_none_is_taken(tmp_path: Path) -> None:
    for name in ("plamo-2-8b-bf16.gguf", "plamo-2-8b-q8_0.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError) as caught:
        find_local(WHOLE, tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: 2 files match: plamo-2-8b-bf16.gguf, plamo-2-8b-q8_0.gguf\n"
        "Name one: hf:pfnet/plamo-2-8b/plamo-2-8b-bf16.gguf"
    )


def test_shards_are_one_candidate(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"plamo-2-8b-{number:05d}-of-00003.gguf").touch()
    assert find_local(WHOLE, tmp_path) == tmp_path / "plamo-2-8b-00001-of-00003.gguf"


def test_a_quantization_names_the_file_that_has_it(tmp_path: Path) -> None:
    for name in ("m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-q8_0.gguf"):
        (tmp_path / "Repo").mkdir(exist_ok=True)
        (tmp_path / "Repo" / name).touch()
    for tag, file in (("Q4_K_M", "m-Q4_K_M.gguf"), ("Q8_0", "m-q8_0.gguf")):
        source = parse_source(f"hf:Org/Repo:{tag}")
        assert isinstance(source, HubSource)
        assert find_local(source, tmp_path) == tmp_path / "Repo" / file
    assert find_local(HubSource("Org/Repo", None, "Q4_K"), tmp_path) is None, "no part of another's name"
