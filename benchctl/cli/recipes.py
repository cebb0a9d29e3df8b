"""`benchctl recipes`: find, read, check and write recipes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchctl.cli import complete, options
from benchctl.cli.options import read_depths
from benchctl.errors import BenchctlError, UsageError
from benchctl.reports.json_output import print_json
from benchctl.text import one_line, plural, visible
from benchctl.writing import refuse_overwriting, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchctl.recipes.schema import Recipe
    from benchctl.recipes.trust import Opening

app = typer.Typer(help="Find, read, check and write recipes.", no_args_is_help=True)

BUNDLED_TARGET, BUNDLED_DRAFT = "bundled:tiny-hybrid", "bundled:tiny-hybrid-draft"
Named = Annotated[
    str, typer.Argument(metavar="NAME", help="A shipped recipe, or a file.", autocompletion=complete.recipes)
]


@app.command("list")
def list_recipes(json_output: options.JsonForText = False) -> None:
    """List the recipes that benchctl ships."""
    from benchctl.recipes.load import load_recipe, shipped_recipes

    recipes = {name: load_recipe(path) for name, path in shipped_recipes().items()}
    if json_output:
        print_json("recipes list", [{"name": name, **_summary(recipe)} for name, recipe in recipes.items()])
        return
    from benchctl.reports.terminal import Printout

    rows = [
        (name, recipe.engine.kind, str(len(recipe.arms)), recipe.description or "") for name, recipe in recipes.items()
    ]
    headings = ("recipe", "engine", "arms", "question")
    Printout().rows(headings, rows, right=("arms",), wrap="question")


@app.command("show")
def show(
    recipe: Named,
    expanded: Annotated[bool, typer.Option("--expanded", help="Show the arms that the matrices expand to.")] = False,
    json_output: options.JsonForText = False,
) -> None:
    """Show a recipe: its file, or with --expanded (or --json) what it expands to, with defaults."""
    from benchctl.recipes.load import find_recipe, load_recipe

    path = find_recipe(recipe)
    loaded = load_recipe(path)
    if json_output:
        print_json(None, loaded.model_dump(mode="json"))
    elif expanded:
        _print_arms(loaded)
    else:
        typer.echo(visible(path.read_text("utf-8-sig")), nl=False)


@app.command("check")
def check(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…", help="Recipe files, or names of shipped ones.", autocompletion=complete.recipes
        ),
    ],
    trust_recipe: Annotated[bool, typer.Option("--trust-recipe", help="Accept whatever the recipes ask for.")] = False,
    json_output: options.JsonForText = False,
) -> None:
    """Check recipes and list every problem; exits with 2 when there is any."""

    results = [_checked(file, trusted=trust_recipe) for file in files]
    if json_output:
        print_json("recipes check", [document for document, _ in results])
    else:
        for document, lines in results:
            for line in lines:
                typer.echo(visible(line), err=not document["ok"])
    if not all(document["ok"] for document, _ in results):
        raise typer.Exit(UsageError.exit_code)


def _checked(file: str, *, trusted: bool) -> tuple[dict[str, Any], list[str]]:
    """Return what is wrong with a recipe and what needs trust, as JSON has it and as lines."""
    from benchctl.measurement.check_recipe import file_problems
    from benchctl.recipes.load import find_recipe, load_recipe
    from benchctl.recipes.problems import Problem, RecipeError, path_text

    try:
        path = find_recipe(file)
        recipe = load_recipe(path)
        if problems := file_problems(recipe, path):
            raise RecipeError(path, problems)
    except BenchctlError as error:
        listed = error.problems if isinstance(error, RecipeError) else (Problem(0, (), str(error)),)
        rows = [{"line": p.line or None, "key": path_text(p.path) or None, "message": p.message} for p in listed]
        document = {"file": file, "ok": False, "arms": None, "openings": [], "problems": rows}
        return document, [str(error) if isinstance(error, RecipeError) else f"{file}: {error}"]
    openings = _openings(recipe, path)
    good = trusted or not openings
    names, told_openings = [arm.name for arm in recipe.arms], [str(opening) for opening in openings]
    remedy = "read it, then --trust-recipe, or once for your own folder: benchctl recipes trust FOLDER"
    state = "good" if good else f"needs your trust; {remedy}"
    line = f"{file}: {state} ({len(names)} {plural(len(names), 'arm')}: {', '.join(names)})"
    document = {"file": file, "ok": good, "arms": names, "openings": told_openings, "problems": []}
    return document, [line, *(f"  {opening}" for opening in told_openings)]


@app.command("new")
def new(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The file is NAME.yaml; without it, questions are asked.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="The engine (benchctl engines list).", autocompletion=complete.kinds),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", "-m", metavar="MODEL", help="The target.", show_default=BUNDLED_TARGET),
    ] = None,
    draft: Annotated[str | None, typer.Option("--draft", "-d", "-md", metavar="MODEL", help="The draft.")] = None,
    types: Annotated[
        str | None,
        typer.Option(metavar="T1,T2", help="Speculation types.", autocompletion=complete.types_of_speculation),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write it.")] = None,
    force: options.Force = False,
) -> None:
    """Write a commented recipe to start from; without a name, it asks."""
    from benchctl.recipes.from_options import new_recipe

    answers: dict[str, Any] = {"engine": engine, "target": target, "draft": draft, "types": types and _listed(types)}
    if name is None:
        answers = _prompted({key: value for key, value in answers.items() if value}, force=force or output is not None)
    else:
        target = target or BUNDLED_TARGET
        draft = draft or (BUNDLED_DRAFT if target == BUNDLED_TARGET else None)
        usual = _listed(types or _usual_types(draft))
        answers |= {"name": name, "target": target, "draft": draft, "types": usual}
    path = output or Path(f"{answers['name']}.yaml")
    text = new_recipe(**answers)
    _check_models(answers)
    refuse_overwriting(path, force)
    write_whole(path, text)
    typer.echo(f"Wrote {path}. Next: benchctl recipes check {path}")


def _prompted(answers: dict[str, Any], *, force: bool) -> dict[str, Any]:
    """Ask for what is missing, each until the recipe of the answers so far is valid; return what `new_recipe` takes.

    `force`: the recipe's file may be there. Raises UsageError where there is no terminal, and for a wrong option.
    """
    from benchctl.prompts.load import load_suite
    from benchctl.recipes.adapters import kinds
    from benchctl.recipes.from_options import DEPTHS, name_of, new_recipe
    from benchctl.recipes.speculation import MAX_DEPTH, TAKEN_BY

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        fix = "benchctl recipes new NAME --target MODEL --draft MODEL"
        raise UsageError("Name the recipe: without a terminal no question can be asked.", fix=fix)

    unasked: dict[str, Any] = {"name": "x", "engine": None, "target": BUNDLED_TARGET, "types": ()}

    def check(draft_answers: dict[str, Any], draft: str | None) -> None:
        new_recipe(**unasked | {"draft": draft} | draft_answers)
        _check_models(draft_answers)
        if draft_answers.get("suite"):
            load_suite(draft_answers["suite"], recipe_folder=Path.cwd())
        if not force and Path(f"{draft_answers.get('name', '')}.yaml").exists():
            raise UsageError(
                "this file exists already", where=f"{draft_answers['name']}.yaml", fix="Choose another name."
            )

    def ask(key: str, question: str, default: str, read: Callable[[str], Any] = str) -> None:
        def fits(text: str) -> Any:  # noqa: ANN401 - a text, a list of texts or of numbers
            try:
                answer = {key: read(text.strip())}
                check(answers | answer, None)
            except BenchctlError as error:
                raise typer.BadParameter(str(error)) from None
            return answer[key]

        if key not in answers:
            answers[key] = typer.prompt(question, default=default, err=True, value_proc=fits)

    check(answers, BUNDLED_DRAFT)
    ask("target", "Target model (a path, hf:ORG/REPO[/FILE] or bundled:NAME)", BUNDLED_TARGET)
    usual = BUNDLED_DRAFT if answers["target"] == BUNDLED_TARGET else "none"
    ask("draft", "Draft model, or none", usual, lambda text: None if text == "none" else text)
    ask("engine", "Engine", kinds()[0])
    ask("types", "Speculation types, with commas between them", _usual_types(answers["draft"]), _listed)
    if any(kind in TAKEN_BY["p_min"] for kind in answers["types"]):
        ask("depths", "Draft depths", ",".join(map(str, DEPTHS)), lambda text: read_depths(text, MAX_DEPTH))
    suite = "Prompts: a shipped suite, or a file of your own"
    ask("suite", suite, "default", lambda text: None if text == "default" else text)
    ask("name", "Name of the recipe", name_of(answers["target"], answers["draft"]))
    return answers


def _check_models(answers: dict[str, Any]) -> None:
    """Refuse a model that is named wrongly or missing; without a target, the draft alone is looked at."""
    from benchctl.models.sources import ModelSearch
    from benchctl.recipes.adapters import adapter_of, kinds
    from benchctl.recipes.schema import ModelPair

    form = adapter_of(answers.get("engine") or kinds()[0]).model_format
    draft = answers.get("draft")
    sources = {"target": {"source": answers.get("target") or BUNDLED_TARGET}, "draft": draft and {"source": draft}}
    ModelSearch(Path.cwd()).check(ModelPair.model_validate(sources), form)


def _usual_types(draft: str | None) -> str:
    return "ngram-mod" if draft is None else "draft-simple,ngram-mod"


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@app.command("trust")
def trust(
    folder: Annotated[
        str | None, typer.Argument(metavar="FOLDER", help="A folder of your recipes; with --remove a program, too.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Do not trust it any longer.")] = False,
    json_output: options.JsonForText = False,
) -> None:
    """Trust every recipe in a folder and below it; without FOLDER, list what you trust.

    Trusted recipes may pass options and variables to the engine, run programs, read files and send keys, as
    --trust-recipe lets a single call. Results folders in it are not trusted.
    """
    from benchctl.paths import config_folder
    from benchctl.permissions import FILE, read_trusted, trust_folder

    if folder is None and remove:
        raise UsageError("Name the folder.", where="--remove", fix="benchctl recipes trust FOLDER --remove")
    trusted = read_trusted() if folder is None else trust_folder(folder, remove=remove)
    if json_output:
        print_json("recipes trust", trusted.model_dump(include={"folders", "programs"}))
        return
    for name, paths in (("folder", trusted.folders), ("program", trusted.programs)):
        for path in paths:
            typer.echo(one_line(f"{name:8} {path}", 400))
    started = f"{len(trusted.runs)} {plural(len(trusted.runs), 'run')} that you started on this machine"
    typer.echo(f"{started}, too. All of it is kept in {config_folder() / FILE}")


@app.command("schema")
def schema(
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write it to this file instead.")] = None,
) -> None:
    """Print the JSON Schema of recipe files, for editors."""
    from benchctl.recipes.load import recipe_json_schema

    text = json.dumps(recipe_json_schema(), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_whole(output, text)
        typer.echo(f"Wrote {output}.")


def _openings(recipe: Recipe, path: Path) -> list[Opening]:
    """Return what a valid recipe asks for that still needs trust."""
    from benchctl.data.store import MANIFEST
    from benchctl.permissions import is_trusted, program_opening
    from benchctl.recipes.trust import find_openings

    if is_trusted(path.parent) and not (path.parent / MANIFEST).is_file():
        return []
    programs = [opening for part in recipe.parts.values() for opening in program_opening(part, path.parent)]
    return list(dict.fromkeys([*find_openings(recipe, path.parent), *programs]))


def _summary(recipe: Recipe) -> dict[str, object]:
    return {
        "description": recipe.description,
        "engine": recipe.engine.kind,
        "target": recipe.models.target.source,
        "draft": recipe.models.draft.source if recipe.models.draft else None,
        "arms": [arm.name for arm in recipe.arms],
    }


def _print_arms(recipe: Recipe) -> None:
    from benchctl.reports.terminal import Printout

    rows = []
    compared = recipe.compared
    for arm in recipe.arms:
        settings = arm.speculation.model_dump(exclude={"type"}, exclude_none=True) if arm.speculation else {}
        types = "+".join(arm.speculation.types) if arm.speculation else "—"
        keys = " ".join(f"{key}={value}" for key, value in settings.items())
        role = " (baseline)" if compared[arm.name].is_baseline else ""
        rows.append((arm.name + role, types, keys, " ".join(arm.args)))
    Printout().rows(("arm", "type", "settings", "args"), rows, wrap="args")
