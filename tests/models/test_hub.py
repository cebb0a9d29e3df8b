"""huggingface-hub against a small hub on this machine: what it serves, what it refuses, and what works without it."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants as hub_constants
import pytest

from benchctl.errors import UsageError
from benchctl.models.hub import OfflineError, fetch, fetch_folder
from benchctl.recipes.source import HubSource
from tests.local_hub import Hub, serving

FILES: dict[str, dict[str, bytes]] = {
    "org/one": {"README.md": b"hello", "model.gguf": b"GGUF one"},
    "org/many": {"a-q4.gguf": b"GGUF a", "b-q8.gguf": b"GGUF b"},
    "org/sharded": {f"m-{number:05d}-of-00002.gguf": b"GGUF %d" % number for number in (1, 2)},
    "org/plain": {"model.safetensors": b"x", "config.json": b"{}", "tokenizer.jsonl": b"[]", "code.py": b"x"},
    "org/nothing": {"README.md": b"x"},
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    with serving(FILES, tmp_path / "hub", monkeypatch) as server:
        yield server


def test_a_named_file_is_downloaded_once(hub: ThreadingHTTPServer) -> None:
    path = fetch(HubSource("org/many", "b-q8.gguf"))
    assert path.read_bytes() == b"GGUF b"
    assert fetch(HubSource("org/many", "b-q8.gguf")) == path
    assert sum(request.startswith("GET /org/many/resolve/") for request in Hub.requests) == 1


def test_the_only_gguf_file_needs_no_name(hub: ThreadingHTTPServer) -> None:
    notices: list[str] = []
    assert fetch(HubSource("org/one", None), notices.append).read_bytes() == b"GGUF one"
    assert notices == ["Fetching org/one/model.gguf"]


def test_a_repository_of_safetensors_is_a_folder_where_that_will_do(hub: ThreadingHTTPServer) -> None:
    assert fetch(HubSource("org/many", None, "Q4")).name == "a-q4.gguf"
    with pytest.raises(UsageError, match="has 2 GGUF files; 0 of them are q5"):
        fetch(HubSource("org/many", None, "q5"))
    folder = fetch(HubSource("org/plain", None), safetensors=True)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.jsonl"]
    assert fetch(HubSource("org/one", None), safetensors=True).name == "model.gguf"
    hub.shutdown()
    hub.server_close()
    assert fetch(HubSource("org/plain", None), safetensors=True) == folder


def test_all_shards_are_downloaded(hub: ThreadingHTTPServer) -> None:
    for name in (None, "m-00002-of-00002.gguf"):
        path = fetch(HubSource("org/sharded", name))
        assert path.name == "m-00001-of-00002.gguf"
        assert path.with_name("m-00002-of-00002.gguf").read_bytes() == b"GGUF 2"


@pytest.mark.parametrize(
    ("repo", "file", "message"),
    [
        (
            "org/many",
            None,
            "hf:org/many: the repository has 2 GGUF files; name one\n"
            "One of:\n  hf:org/many/a-q4.gguf\n  hf:org/many/b-q8.gguf",
        ),
        (
            "org/plain",
            None,
            "hf:org/plain: the repository has safetensors and no GGUF file\n"
            "Make it one first: benchctl models quantize hf:org/plain --type bf16 (or another type).",
        ),
        ("org/nothing", None, "hf:org/nothing: the repository has no GGUF file\nName another repository."),
        (
            "org/many",
            "b-q9.gguf",
            "hf:org/many/b-q9.gguf: the repository has no such file\nDid you mean 'b-q8.gguf'?",
        ),
        (
            "org/unknown",
            None,
            "hf:org/unknown: the hub has no such repository, or it is private\n"
            "Check the spelling; for a private one, log in: hf auth login",
        ),
        (
            "org/gated",
            "m.gguf",
            "hf:org/gated/m.gguf: access to this repository must be granted first\n"
            "Accept the model's terms on its page, then log in: hf auth login",
        ),
    ],
)
def test_what_the_hub_does_not_give_is_explained(
    hub: ThreadingHTTPServer, repo: str, file: str | None, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        fetch(HubSource(repo, file))
    assert str(caught.value) == message


@pytest.mark.parametrize("how", ["unreachable", "HF_HUB_OFFLINE"])
def test_without_a_network_the_cache_serves_and_what_it_lacks_is_one_error(
    hub: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = fetch(HubSource("org/one", None))
    if how == "unreachable":
        hub.shutdown()
        hub.server_close()
    else:
        monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    assert fetch(HubSource("org/one", "model.gguf")) == path
    assert fetch(HubSource("org/one", None)) == path
    for source in (HubSource("org/many", "a-q4.gguf"), HubSource("org/many", None)):
        with pytest.raises(OfflineError, match="its cache does not have"):
            fetch(source)


def test_a_folder_of_safetensors_is_downloaded_once(hub: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch_folder(HubSource("org/plain", None))
    assert {file.name for file in folder.iterdir()} == {"model.safetensors", "config.json", "tokenizer.jsonl"}
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    assert fetch_folder(HubSource("org/plain", None)) == folder
    with pytest.raises(OfflineError, match="the repository"):
        fetch_folder(HubSource("org/other", None))


def test_a_repository_without_safetensors_is_no_folder(hub: ThreadingHTTPServer) -> None:
    with pytest.raises(UsageError, match="has no safetensors"):
        fetch_folder(HubSource("org/one", None))
