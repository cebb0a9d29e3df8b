"""`benchctl models prompts`: list, show and import prompt suites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from benchctl.cli import complete, options
from benchctl.errors import UsageError
from benchctl.paths import shipped_folder
from benchctl.reports.json_output import print_json
from benchctl.text import one_line

if TYPE_CHECKING:
    from benchctl.prompts.load import Suite
    from benchctl.prompts.questions import Questions

app = typer.Typer(help="List, show and import prompt suites.", no_args_is_help=True)

_BEGINNING = 100


@app.command("list")
def list_suites(json_output: options.JsonForText = False) -> None:
    """List the prompt suites that benchctl ships."""
    from benchctl.prompts.load import load_suite

    folder = shipped_folder("prompts")
    suites = [load_suite(str(path), recipe_folder=folder) for path in sorted(folder.glob("*.json"))]
    if json_output:
        print_json("models prompts list", [{**_head(suite), "tasks": _counts(suite)} for suite in suites])
        return
    _print_table(
        ("suite", "kind", "licence", "prompts", "tasks"),
        [
            (suite.name, suite.kind, suite.licence, str(sum(_counts(suite).values())), ", ".join(suite.tasks))
            for suite in suites
        ],
    )


@app.command("show")
def show(
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="A shipped suite, or a file.", autocompletion=complete.suites)
    ],
    skip_bad: options.SkipBad = False,
    json_output: options.JsonForText = False,
) -> None:
    """Show a suite: its tasks and how each prompt begins; with --json all of it, with the prompts' hashes."""
    from benchctl.prompts.load import load_suite, prompt_sha256

    loaded = load_suite(suite, recipe_folder=Path.cwd(), skip_bad=skip_bad)
    if json_output:
        tasks = {
            task: [
                {"prompt_idx": index, "sha256": prompt_sha256(prompt), **prompt.model_dump(exclude_none=True)}
                for index, prompt in enumerate(prompts)
            ]
            for task, prompts in loaded.tasks.items()
        }
        print_json("models prompts show", {**_head(loaded), "notes": loaded.notes, "tasks": tasks})
        return
    for key, value in _head(loaded).items():
        typer.echo(f"{key:8} {one_line(value)}")
    for note in loaded.notes:
        typer.echo(note)
    typer.echo()
    rows = []
    for item in loaded.select(None, None):
        messages = item.prompt.messages
        text = item.prompt.prompt if messages is None else messages[-1].text
        rows.append((item.task, str(item.prompt_idx), str(len(messages or ())), one_line(text or "", _BEGINNING)))
    if loaded.kind == "raw":
        _print_table(("task", "prompt", "begins"), [(task, index, text) for task, index, _, text in rows])
    else:
        _print_table(("task", "prompt", "turns", "the last turn begins"), rows)


@app.command("import")
def import_suite(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines, also .gz; a JSON list; CSV; parquet.")],
    format_name: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="spec-bench, mt-bench, humaneval, speed-bench, gsm8k, mmlu, mmlu-pro, aime or jsonl.",
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the suite.")],
    name: Annotated[str | None, typer.Option(help="The suite's name; default: the output file's.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Only these tasks, with commas between them.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most N prompts of each task.", metavar="N")] = None,
    licence: Annotated[
        str | None, typer.Option("--licence", "--license", help="The prompts' licence; default: the format's own.")
    ] = None,
    kind: Annotated[
        Literal["chat", "raw"] | None, typer.Option(help="Default: that of the format, or of the file's first line.")
    ] = None,
    skip_bad: options.SkipBad = False,
    force: options.Force = False,
) -> None:
    """Convert a public question file to a prompt suite."""
    from benchctl.prompts.formats import find_format, safe_name
    from benchctl.prompts.load import write_suite
    from benchctl.prompts.questions import read_questions
    from benchctl.writing import refuse_overwriting

    chosen = find_format(format_name)
    licence = (licence or "").strip() or chosen.licence
    if licence is None:
        message = f"the licence of these prompts is not known: the format {chosen.name} does not define it"
        raise UsageError(
            message, where="--licence", fix="Name it as their owner does, for example: --licence CC-BY-4.0"
        )
    suite_name = name or safe_name(output.stem)
    if safe_name(suite_name) != suite_name:
        fix = f"For example: --name {safe_name(suite_name)}"
        raise UsageError("a suite's name has letters, digits and _ . + - only", where="--name", fix=fix)
    refuse_overwriting(output, force)
    selected = [task.strip() for task in tasks.split(",") if task.strip()] if tasks else None
    questions = read_questions(source, source.name, chosen, kind=kind, tasks=selected, limit=limit, skip_bad=skip_bad)
    suite = write_suite(questions, output, name=suite_name, licence=licence, force=force)
    _print_import(questions, suite, output)


def _print_import(questions: Questions, suite: Suite, output: Path) -> None:

    counts = _counts(suite)
    total = sum(counts.values())
    typer.echo(f"Wrote {one_line(str(output))}: {suite.kind}, licence {one_line(suite.licence)}, {total} prompts")
    width = max(map(len, counts))
    for task, count in counts.items():
        typer.echo(f"  {task:{width}} {count:5}")
    for note in questions.notes:
        typer.echo(note)


def _head(suite: Suite) -> dict[str, str]:
    return {name: getattr(suite, name) for name in ("name", "kind", "licence", "source", "sha256")}


def _counts(suite: Suite) -> dict[str, int]:
    return {task: len(prompts) for task, prompts in suite.tasks.items()}


def _print_table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from benchctl.reports.terminal import Printout

    Printout().rows(titles, rows, right=("prompt", "prompts", "turns"), wrap=titles[-1])
