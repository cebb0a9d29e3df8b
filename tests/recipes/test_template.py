"""What `recipes new` writes is a good recipe, whatever names it is given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchctl.errors import UsageError
from benchctl.recipes.from_options import new_recipe
from benchctl.recipes.schema import Recipe
from benchctl.recipes.speculation import NEEDS_DRAFT_MODEL, SPECULATION_TYPES

Load = Callable[[str], Recipe]


@pytest.mark.parametrize("kind", SPECULATION_TYPES)
def test_every_type_gives_a_recipe_that_loads(load: Load, kind: str) -> None:
    draft = "hf:org/draft/d.gguf" if kind in NEEDS_DRAFT_MODEL else None
    recipe = load(new_recipe("mine", engine="llama.cpp", target="hf:org/target", draft=draft, types=[kind]))
    assert recipe.arms[0].name == "baseline"
    assert all(arm.speculation and arm.speculation.types == (kind,) for arm in recipe.arms[1:])
    assert len(recipe.arms) >= 2


@pytest.mark.parametrize(
    "path", ["a b.gguf", "C:\\models\\x.gguf", "no", "1e3", "-x", 'q"uote', "# x", "日本.gguf", "a: b", "x:"]
)
def test_names_that_yaml_would_read_otherwise_survive(load: Load, path: str) -> None:
    recipe = load(new_recipe("1e3", engine="llama.cpp", target=path, draft=None, types=["ngram-mod"]))
    assert (recipe.name, recipe.models.target.source) == ("1e3", path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "../x"}, "name: expected a name of letters, digits"),
        ({"engine": "llama"}, "There is no engine 'llama'.\nDid you mean 'llama.cpp'?"),
        ({"types": ["ngram-smple"]}, "There is no speculation type 'ngram-smple'.\nDid you mean 'ngram-simple'?"),
        ({"types": ["draft-simple"]}, "draft-simple needs a draft model.\nName it: --draft DRAFT"),
    ],
)
def test_what_no_recipe_may_have_is_refused(wrong: dict[str, object], message: str) -> None:
    options = {
        "name": "mine",
        "engine": "llama.cpp",
        "target": "x.gguf",
        "draft": None,
        "types": ["ngram-mod"],
        **wrong,
    }
    name = options.pop("name")
    with pytest.raises(UsageError) as caught:
        new_recipe(name, **options)  # type: ignore[arg-type]
    assert message in str(caught.value)
