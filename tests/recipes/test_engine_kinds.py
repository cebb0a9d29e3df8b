"""What has no meaning for a kind of engine is refused, with the place in the file."""

from pathlib import Path

import pytest

from benchctl.recipes.load import load_recipe
from benchctl.recipes.problems import RecipeError

PROMPTS = "prompts: {suite: tiny.json}\n"
ARMS = "arms:\n  - name: baseline\n  - name: spec\n    speculation: {type: ngram-simple, max: 4}\n"
BUNDLED = "models: {target: {source: bundled:tiny-hybrid}}\n"
ENDPOINT = "engine: {kind: openai, url: 'http://127.0.0.1:8000/v1'}\n"


def load(folder: Path, text: str) -> object:
    file = folder / "recipe.yaml"
    file.write_text("name: try\n" + text, "utf-8")
    return load_recipe(file)


GOOD = {
    "an endpoint without models": ENDPOINT + PROMPTS + ARMS,
    "an endpoint for each arm": "engine: {kind: openai}\n"
    + PROMPTS
    + "arms:\n  - {name: baseline, url: 'http://a:1'}\n"
    + "  - {name: spec, url: 'http://b:2', speculation: {type: draft-simple, max: 4}}\n",
    "a method by the engine's own name": "engine: {kind: vllm, dtype: float32}\n"
    + BUNDLED
    + PROMPTS
    + ARMS.replace("ngram-simple, max: 4", "suffix, max: 4, options: {suffix_decoding_max_tree_depth: 16}"),
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_what_fits_loads(tmp_path: Path, text: str) -> None:
    load(tmp_path, text)


WRONG = {
    "no models for an engine that is started": (PROMPTS + ARMS, "models: this key is missing"),
    "no endpoint": ("engine: {kind: openai}\n" + PROMPTS + ARMS, "this arm has no endpoint"),
    "files for an endpoint": (ENDPOINT + BUNDLED + PROMPTS + ARMS, "an endpoint loads its models itself"),
    "a served model for a started engine": (
        "models: {target: {source: 'served:x'}}\n" + PROMPTS + ARMS,
        "served:NAME is for `kind: openai`",
    ),
    "a binary for an endpoint": (ENDPOINT.replace("}", ", binary: x}") + PROMPTS + ARMS, "binary has no meaning"),
    "an endpoint for llama.cpp": (
        "engine: {url: 'http://a:1'}\n" + BUNDLED + PROMPTS + ARMS,
        "engine.url: url has no meaning for llama.cpp",
    ),
    "precision for llama.cpp": ("engine: {dtype: float32}\n" + BUNDLED + PROMPTS + ARMS, "dtype has no meaning"),
    "no address": (ENDPOINT.replace("http://127.0.0.1:8000/v1", "here") + PROMPTS + ARMS, "expected an address"),
    "a key after a question mark": (
        ENDPOINT.replace("/v1", "/v1?key=x") + PROMPTS + ARMS,
        "without anything after a ? or #",
    ),
    "quantizing for vllm": (
        "engine: {kind: vllm}\nmodels: {target: {source: bundled:tiny-hybrid, quantize: {type: q8_0}}}\n"
        + PROMPTS
        + ARMS,
        "quantize makes GGUF files for llama.cpp",
    ),
    "a method that no transformers has": (
        "engine: {kind: transformers}\n" + BUNDLED + PROMPTS + ARMS.replace("ngram-simple", "draft-mtp"),
        "recipe.yaml:8: arms[1].speculation: draft-mtp: transformers drafts with a multi-token head",
    ),
    "another's method for transformers": (
        "engine: {kind: transformers}\n" + BUNDLED + PROMPTS + ARMS.replace("ngram-simple", "self-layerskp"),
        "transformers has no method `self-layerskp`. Did you mean 'self-layerskip'?",
    ),
    "an option that a method has not": (
        "engine: {kind: transformers}\n"
        + BUNDLED
        + PROMPTS
        + ARMS.replace("ngram-simple, max: 4", "self-layerskip, max: 4, options: {skip: 2}"),
        "options.skip: it is a number from 0.01 to 0.99, not 2.",
    ),
    "a type that no vLLM has": (
        "engine: {kind: vllm}\n" + BUNDLED + PROMPTS + ARMS.replace("ngram-simple, max: 4", "ngram-cache"),
        "vLLM has nothing like `ngram-cache`. Of benchctl's types it has draft-simple",
    ),
    "a type that no SGLang has": (
        "engine: {kind: sglang}\n" + BUNDLED + PROMPTS + ARMS.replace("ngram-simple, max: 4", "ngram-cache"),
        "SGLang has nothing like `ngram-cache`. Of benchctl's types it has draft-simple",
    ),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_has_no_meaning_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)
    assert "recipe.yaml:" in str(caught.value)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "transformers"])
def test_a_key_is_refused_once_by_the_engine_that_lacks_it(tmp_path: Path, kind: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, f"engine: {{kind: {kind}}}\n" + BUNDLED + PROMPTS + ARMS.replace("max: 4", "max: 4, p_min: 0.5"))
    assert str(caught.value).count("p_min") == 1


def test_a_password_in_an_address_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, ENDPOINT.replace("127.0.0.1", "me:hunter2@127.0.0.1") + PROMPTS + ARMS)
    assert "password is refused" in str(caught.value)
    assert "hunter2" not in str(caught.value)
