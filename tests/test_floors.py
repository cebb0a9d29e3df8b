"""The layout is the architecture: imports go down the floors, adapters do not know each other, and nothing is circular.

`FLOORS` is the one floor plan; the table of docs/architecture.md is compared with it. Imports are read from the source,
those for type checking included.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "benchctl"

FLOORS = (
    ("recipes", "errors", "text", "paths", "writing"),
    ("models", "prompts"),
    ("data", "machine", "permissions"),
    ("analysis",),
    ("words",),
    ("engines",),
    ("measurement",),
    ("lossless",),
    ("reports",),
    ("experiments",),
    ("cli", "api"),
)
FLOOR = {part: number for number, parts in enumerate(FLOORS) for part in parts}
NEIGHBOURS = {
    ("recipes", "errors"),
    ("recipes", "text"),
    ("recipes", "paths"),
    ("paths", "errors"),
    ("writing", "errors"),
    ("machine", "data"),
}
"""On one floor: errors, text and paths are used by everything, and a watch of the machine is stored as it is."""
NOT_FOR_ENGINES = {"analysis", "words"}


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()


def imported(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, module of benchctl) for every import in a file, wherever it stands."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "benchctl")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: imports name their whole path"
            if node.module and node.module.split(".")[0] == "benchctl":
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield node.lineno, inner if inner in MODULES else node.module


IMPORTS = {name: list(imported(file)) for name, file in MODULES.items()}


def part(module: str) -> str | None:
    """Return the folder or file below benchctl/ that a module belongs to; `None` for the package itself."""
    names = module.split(".")
    return names[1] if len(names) > 1 and names[1] != "__main__" else None


def places(module: str, line: int) -> str:
    return f"{MODULES[module].relative_to(ROOT)}:{line}"


def test_every_part_has_its_floor() -> None:
    assert {part(name) for name in MODULES} - {None} == FLOOR.keys()


def test_imports_go_down_the_floors() -> None:
    wrong = []
    for module, found in IMPORTS.items():
        here = part(module)
        for line, other in found:
            there = part(other)
            if here is None or there is None or here == there or (here, there) in NEIGHBOURS:
                continue
            if FLOOR[there] >= FLOOR[here] or (here == "engines" and there in NOT_FOR_ENGINES):
                wrong.append(f"{places(module, line)} imports {other}")
    assert not wrong, "\n".join(wrong)


def test_what_measures_and_what_shows_never_meet() -> None:
    wings = {("measurement", "reports"), ("reports", "measurement")}
    arrows = [(module, line, other) for module, found in IMPORTS.items() for line, other in found]
    wrong = [
        f"{places(module, line)} imports {other}"
        for module, line, other in arrows
        if (part(module), part(other)) in wings
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_circular() -> None:
    """`benchctl` itself is left out: it gives the functions of `benchctl.api` when they are first used."""
    graph = {module: {other for _, other in found if other != module} for module, found in IMPORTS.items()}
    del graph["benchctl"]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        pytest.fail(" -> ".join(reversed(circle.args[1])))


def test_what_judges_launches_nothing() -> None:
    judging = {module: arrows for module, arrows in IMPORTS.items() if module.startswith("benchctl.lossless.judge")}
    assert judging
    impure = ("benchctl.lossless.score", "benchctl.measurement", "benchctl.engines")
    wrong = [f"{places(module, line)} imports {other}" for module, arrows in judging.items()
             for line, other in arrows if other.startswith(impure)]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_no_experiment_imports_another() -> None:
    """What the trunk imports is held by the floors."""
    wrong = []
    for module, found in IMPORTS.items():
        names = module.split(".")
        for line, other in found if names[1:2] == ["experiments"] else ():
            there = other.split(".")
            if there[1:2] == ["experiments"] and there[2:3] != names[2:3]:
                wrong.append(f"{places(module, line)} imports {other}")
    assert not wrong, "\n".join(wrong)


def test_no_two_folders_import_each_other() -> None:
    arrows = {(part(module), part(other)) for module, found in IMPORTS.items() for _, other in found}
    arrows = {(here, there) for here, there in arrows if here and there and here != there}
    assert not {(here, there) for here, there in arrows if (there, here) in arrows}


def adapters() -> set[str]:
    """Return the folders below engines/ that are adapters: every one but the kit."""
    return {file.parent.name for file in (PACKAGE / "engines").glob("*/__init__.py")} - {"common"}


def test_no_adapter_imports_another_and_the_kit_none() -> None:
    wrong = []
    for module, found in IMPORTS.items():
        names = module.split(".")
        inside = len(names) > 3 and names[1] == "engines"
        home = names[2] if names[1:2] == ["engines"] and (inside or (names[2:3] and names[2] in adapters())) else None
        for line, other in found:
            there = other.split(".")
            if there[1:2] == ["engines"] and len(there) > 2 and there[2] in adapters() and there[2] != home:
                wrong.append(f"{places(module, line)} imports {other}")
    assert not wrong, "\n".join(wrong)


def strings(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) for every string of a file that is no docstring."""
    tree = ast.parse(file.read_text("utf-8"))
    prose = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


def test_no_module_outside_an_adapter_names_a_kind_of_engine() -> None:
    kinds = {entry.name for entry in entry_points(group="benchctl.engines")}
    assert kinds, "install benchctl again: its entry points are not there"
    wrong = []
    for module, file in MODULES.items():
        names = module.split(".")
        if names[1:2] == ["engines"] and names[2:3] and names[2] in adapters():
            continue
        wrong += [f"{places(module, line)} says {text!r}" for line, text in strings(file) if text in kinds]
    assert not wrong, "\n".join(wrong)


def test_the_page_on_the_architecture_has_these_floors_and_no_missing_file() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    named = set(re.findall(r"`(?:benchctl/)?([a-z_/]+\.py|benchctl/[a-z]+/)`", page))
    files = {
        str(file.relative_to(place))
        for place, top in ((ROOT, ROOT / "tests"), (ROOT, PACKAGE), (PACKAGE, PACKAGE))
        for file in top.rglob("*.py")
    }
    names = {file.name for file in PACKAGE.rglob("*.py")}  # of a file beside the one that was named before
    found = files | names | {f"benchctl/{name}/" for name in FLOOR}
    assert named <= found, named - found
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", page, re.MULTILINE)
    plan = {int(number): set(re.findall(r"`(?:benchctl/)?([a-z_]+)(?:/|\.py)`", parts)) for number, parts in rows}
    assert len(plan) == len(rows) and plan == {number: set(parts) for number, parts in enumerate(FLOORS)}
