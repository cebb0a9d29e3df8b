"""Which types of speculation a pair of GGUF files cannot have, by their headers: known before there is an engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchctl.models.gguf_facts import read_facts
from benchctl.models.vocabulary import compare
from benchctl.recipes.schema import Recipe


def pair_problems(recipe: Recipe, target: Path, draft: Path | None) -> Iterator[str]:
    """Yield a sentence for each such type that a recipe's arms ask for; `draft`: `None` where its file is not here.

    Raises UsageError for a damaged file.
    """
    types = {arm.name: arm.speculation.types for arm in recipe.arms if arm.speculation}
    plain = [name for name, kinds in types.items() if "draft-simple" in kinds]
    mismatches = compare(target, draft) if plain and draft is not None else []
    if mismatches:  # with such a draft llama-server answers, and does not speculate
        yield (
            f"arms {', '.join(plain)}: the draft does not fit the target: {'; '.join(mismatches)}. Choose a draft of "
            "the same model family: it must have the target's vocabulary."
        )
    heads = [name for name, kinds in types.items() if "draft-mtp" in kinds] if recipe.models.draft is None else []
    if heads and not read_facts(target).mtp_layers:
        yield (
            f"arms {', '.join(heads)}: draft-mtp needs a multi-token-prediction head; the target has none. Name one "
            "in models.draft."
        )
