"""Addresses, keys, and what a recipe may ask of endpoints."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchctl.engines.openai.adapter import OpenAiSpec
from benchctl.engines.openai.discovery import Address, ApiKey, check_key, parse_address, read_key
from benchctl.engines.openai.engine import OpenAiEngine
from benchctl.engines.registry import make_engine
from benchctl.errors import UsageError
from benchctl.recipes.schema import Arm, ModelPair, ModelSpec, PromptsSpec, Recipe, Sampling
from tests.engines.openai.conftest import SPECULATION, served
from tests.engines.openai.fake_endpoint import Script

Endpoint = Callable[..., Script]


@pytest.mark.parametrize(
    ("url", "root", "api"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://host", "http://host", "http://host/v1"),
        ("https://host/serving/v1/", "https://host/serving", "https://host/serving/v1"),
        ("https://host/openai/v4", "https://host/openai", "https://host/openai/v4"),
        ("http://[::1]:80", "http://[::1]:80", "http://[::1]:80/v1"),
    ],
)
def test_addresses(url: str, root: str, api: str) -> None:
    assert parse_address(url, "engine.url") == Address(root, api)


@pytest.mark.parametrize(
    "url",
    [None, "", "host:8000", "ftp://host", "http://", "http://me:hunter22@host", "http://h/?key=hunter22", "http://h:x"],
)
def test_no_addresses(url: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(url, "engine.url")
    assert "hunter22" not in str(caught.value)


def test_a_key_does_not_show_itself_and_a_placeholder_is_no_secret() -> None:
    key = ApiKey("sk-0123456789")
    assert "0123456789" not in repr(key)
    assert key.redact("Bearer sk-0123456789!") == "Bearer [API key]!"
    for spelling in ("SK-0123456789", "Sk-0123456789"):
        assert key.redact(f"Bearer {spelling}!") == "Bearer [API key]!"
    assert ApiKey("none").redact("none of them") == "none of them"
    assert ApiKey().headers == {}


def recipe(url: str, *arms: Arm, sampling: Sampling | None = None) -> Recipe:
    return Recipe(
        name="r",
        engine=OpenAiSpec(kind="openai", url=url),
        models=ModelPair(target=ModelSpec(source="served:")),
        prompts=PromptsSpec(suite="s"),
        sampling=sampling or Sampling(),
        arms=[Arm(name="baseline"), *arms],
    )


def problems(checked: Recipe) -> str:
    with pytest.raises(UsageError) as caught:
        make_engine(checked.engine).check(checked, served())
    return caught.value.what


def test_what_an_endpoint_does_not_support(endpoint: Endpoint) -> None:
    first, two = endpoint(), endpoint()
    assert "same URL as baseline" in problems(recipe(first.url, Arm(name="spec", speculation=SPECULATION)))
    slash = Arm(name="spec", speculation=SPECULATION, url=f"{first.url}/v1/")
    assert "same URL as baseline" in problems(recipe(first.url, slash))
    deep = Arm(name="deep", speculation=SPECULATION.model_copy(update={"max": 8}), url=two.url)
    spec = Arm(name="spec", speculation=SPECULATION, url=two.url)
    assert "same URL as spec" in problems(recipe(first.url, spec, deep))
    assert "ignore_eos" in problems(recipe(first.url, sampling=Sampling(ignore_eos=True)))
    assert "top_k: 0" in problems(recipe(first.url, sampling=Sampling(temperature=1.0, top_k=40)))
    sound = recipe(first.url, Arm(name="spec", speculation=SPECULATION, url=two.url))
    assert any("none of the servers" in text for text in make_engine(sound.engine).check(sound, served()))


def test_a_known_server_takes_more(endpoint: Endpoint) -> None:
    llama_server = endpoint(pages={"/props": {"build_info": "b1"}})
    checked = recipe(llama_server.url, sampling=Sampling(ignore_eos=True, temperature=1.0, top_k=40))
    assert make_engine(checked.engine).check(checked, served()) == []


@pytest.mark.parametrize(("key", "no_secret"), [("ollama", True), ("long-enough", False)])
def test_a_short_key_is_reported_as_no_secret(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, key: str, no_secret: bool
) -> None:
    monkeypatch.setenv("LOCAL_KEY", key)
    spec = OpenAiSpec(kind="openai", url=endpoint().url, api_key_env="LOCAL_KEY")
    checked = recipe(str(spec.url)).model_copy(update={"engine": spec})
    warnings = make_engine(checked.engine).check(checked, served())
    assert any("LOCAL_KEY" in text and "no secret" in text for text in warnings) == no_secret
    assert not any(key in text for text in warnings)


def test_models_of_other_names_are_reported(endpoint: Endpoint) -> None:
    first, two = endpoint(models=["a"]), endpoint(models=["b"])
    checked = recipe(first.url, Arm(name="spec", speculation=SPECULATION, url=two.url))
    assert any("baseline: a; spec: b" in text for text in make_engine(checked.engine).check(checked, served()))


def test_there_is_no_binary() -> None:
    with pytest.raises(UsageError, match="no binary"):
        OpenAiEngine(OpenAiSpec(kind="openai", url="http://h"), binary="llama-server")


@pytest.mark.parametrize(
    ("url", "refused"), [("http://h:1", True), ("http://10.0.0.1", True), ("http://127.0.0.1:1", False)]
)
def test_a_key_too_short_to_hide_is_for_this_machine_alone(url: str, refused: bool) -> None:
    key, address = read_key("K", {"K": "ollama"}), parse_address(url, "url")
    if refused:
        with pytest.raises(UsageError, match="fewer than 8 characters") as caught:
            check_key(key, address)
        assert "ollama" not in str(caught.value)
    else:
        check_key(key, address)
    check_key(read_key("K", {"K": "long-enough"}), address)
