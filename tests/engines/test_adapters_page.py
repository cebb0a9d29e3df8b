"""docs/adapters.md documents every field and method of an adapter and of the contract, and no other."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from benchctl.engines import base, in_use, scoring
from benchctl.recipes.adapters import Adapter

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text("utf-8")
KINDS = {
    name: kind
    for module in (base, scoring, in_use)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and kind.__module__ == module.__name__
}
CONTRACT = [Adapter, *filter(dataclasses.is_dataclass, KINDS.values())]


@pytest.mark.parametrize("kind", CONTRACT, ids=lambda kind: kind.__name__)
def test_documents_every_field_and_no_other(kind: type) -> None:
    fields = [field.name for field in dataclasses.fields(kind)]
    table = re.search(rf"^\| field of `{kind.__name__}` \|.*\n\|[- |]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert table is not None, f"no table of {kind.__name__}'s fields"
    cells = [line.split("|")[1] for line in table[1].splitlines()]
    documented = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(documented) == sorted(fields)


def test_documents_every_method_and_no_other() -> None:
    """What a scorer and a comparer do stands in their docstrings; the page names what makes them."""
    kinds = {name: kind for name, kind in KINDS.items() if re.fullmatch(r"\w*(Engine|Server|Process)", name)}
    methods = {f"{name}.{method}" for name, kind in kinds.items() for method in dir(kind) if method[0] != "_"}
    assert methods == set(re.findall(rf"`((?:{'|'.join(kinds)})\.\w+)`", PAGE))
