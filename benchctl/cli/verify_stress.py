"""`benchctl verify-stress`: what only shows in use, such as a cached prompt, a crowd or a conversation.

Names and answers are untrusted text.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli import options
from benchctl.errors import UsageError
from benchctl.reports.json_output import print_json
from benchctl.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchctl.engines.base import EngineFault
    from benchctl.experiments.stress.judge import ScenarioResult
    from benchctl.experiments.stress.plan import ScenarioName
    from benchctl.experiments.stress.stored import Reproduction, StressTest
    from benchctl.reports.terminal import Printout

COLOUR = {"stable": "green", "violation": "red", "fails": "red", "known fault": "red"}
SLOWER = 0.1
"""A fall of the acceptance rate that is told."""
_SCENARIOS = "Of canary, cache, crowd, sessions, constraint, cancel, long, pressure."
_IN_JSON = {"noise", "noise_tokens", "inapplicable", "skipped", "unscored", "faults", "reproductions"}
"""What of a stored test is printed as it is."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")


def verify_stress(
    subject: options.Words = None,
    target: options.Target = None,
    draft: options.Draft = None,
    engine: options.Kind = None,
    types: options.Types = None,
    depth: options.Depth = None,
    sweep: options.Sweep = None,
    prompts: options.Prompts = None,
    limit: options.Limit = None,
    settings: options.Settings = None,
    url: Annotated[str | None, options.of_models(metavar="URL", help="A server without speculation.")] = None,
    arm_url: Annotated[
        str | None, options.of_models(metavar="URL", help="With --url: a server that speculates.")
    ] = None,
    arm: options.OnlyArms = None,
    only: Annotated[str | None, typer.Option(metavar="SCENARIOS", help=_SCENARIOS)] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="About how long: 90s, 10m, 1h.")] = "10m",
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the plan of requests.")] = 1,
    out: options.Out = Path("results"),
    accept_known: Annotated[bool, typer.Option("--accept-known", help="Exit with 0 for known faults alone.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Judge a stored test (its folder) again.")] = False,
    issue: Annotated[bool, typer.Option("--issue", help="Print the engine's bug form, filled in.")] = False,
    engine_binary: options.EngineBinary = None,
    models_dir: options.ModelsDir = None,
    trust_recipe: options.TrustRecipe = False,
    as_json: options.JsonForTables = False,
    quiet: options.NoTables = False,
) -> None:
    """Is it right in use: cached, in a crowd, in conversation?

    The arm and its target alone get the same plan of requests, with the server's own defaults: prompt cache, slots,
    batches. An error that the target alone does not have, an invalid answer, or an answer that changes with the state
    of the server counts against the arm. Prints the shortest plan that still shows it. Exits with 1 for a violation,
    a failure, or a known fault of the engine.
    """
    from benchctl.experiments.stress.judge import judge_stress
    from benchctl.experiments.stress.preparing import StressSettings, stressed_recipe
    from benchctl.experiments.stress.scoring import find_divergences
    from benchctl.experiments.stress.session import stress
    from benchctl.experiments.stress.stored import DOCUMENT, read_stress
    from benchctl.measurement.plan import keep_only
    from benchctl.measurement.preflight import engine_faults
    from benchctl.measurement.progress import shown_steps
    from benchctl.measurement.requested import requested_recipe, subject_of
    from benchctl.measurement.run import signals_interrupt
    from benchctl.recipes.from_options import RecipeOptions

    if issue and (as_json or quiet):
        raise UsageError("--issue prints a form and nothing else.", where="--issue, --json, -q")
    wanted = StressSettings(*_scenarios(only), seed, _seconds(budget))
    if offline:
        options.refuse_beside(
            "--offline",
            {
                "--target": target, "--draft": draft, "--engine": engine, "--type": types, "--depth": depth,
                "-L": sweep, "--prompts": prompts, "--limit": limit, "--set": settings, "--url": url,
                "--arm-url": arm_url, "--arm": arm, "--only": only, "--engine-binary": engine_binary,
                "--models-dir": models_dir,
            },
        )  # fmt: skip
        fix = f"Name the folder that holds {DOCUMENT}."
        if len(subject or ()) != 1:
            raise UsageError("Expected one stored test.", where="--offline", fix=fix)
        folder = Path((subject or [""])[0])
        folder = folder.parent if folder.name == DOCUMENT else folder
        try:
            test = read_stress(folder)
        except FileNotFoundError:
            raise UsageError("There is no stress test here.", where=str(folder), fix=fix) from None
        find_divergences(test)  # a test that was interrupted has not come to it
    else:
        if subject_of(subject or (), target, draft)[1] is not None and not sweep:
            depth = depth or "4"  # an arm and its control
        named = RecipeOptions(subject, target, draft, engine, types, depth, sweep, prompts, limit, settings)
        context = requested_recipe(named, out, trust=trust_recipe, url=url, arm_url=arm_url)
        recipe = stressed_recipe(keep_only(context.recipe, arm, "--arm") if arm else context.recipe)
        with shown_steps(quiet=quiet or as_json) as show, signals_interrupt():
            prepared = context.prepare(engine_binary, models_dir, lambda note: show(note, 0, 0), recipe)
        if not quiet:
            _print_notes(prepared.warnings, engine_faults(prepared, in_use=True))
        with shown_steps(quiet=quiet or as_json) as show, signals_interrupt():
            folder, test = stress(prepared, wanted, out, ["benchctl", *sys.argv[1:]], show)
    results = judge_stress(test)
    if as_json:
        print_json(
            "verify-stress",
            {
                "folder": str(folder),
                "status": test.status,
                "seed": test.plan.seed,
                "size": test.plan.size,
                **test.model_dump(include=_IN_JSON),
                "results": [result.model_dump() for result in results],
            },
        )
    elif issue:
        _print_issue(folder, test, results)
    elif not quiet:
        _print(folder, test, results)
    bad = {"violation", "fails"} if accept_known else {"violation", "fails", "known fault"}
    if any(result.verdict in bad for result in results):
        raise typer.Exit(1)


def _scenarios(names: str | None) -> tuple[tuple[ScenarioName, ...], frozenset[ScenarioName]]:
    """Return the scenarios of `--only`, or the usual ones, and which are named themselves. Raises UsageError."""
    from benchctl.experiments.stress.plan import PRESSURE, SCENARIOS, USUAL

    words = [*USUAL] if names is None else [name.strip() for name in names.split(",")]
    chosen = [name for word in words for name in (PRESSURE if word == "pressure" else [word])]
    if unknown := [name for name in chosen if name not in SCENARIOS]:
        fix = f"Name: {', '.join(SCENARIOS)}; pressure stands for the last {len(PRESSURE)}."
        raise UsageError(f"There is no scenario {unknown[0]!r}.", where="--only", fix=fix)
    named = () if names is None else words
    return tuple(name for name in SCENARIOS if name in chosen), frozenset(name for name in SCENARIOS if name in named)


def _seconds(duration: str) -> float:
    """Return the seconds of `90s`, `10m` or `1h`. Raises UsageError."""
    match = _DURATION.fullmatch(duration.strip())
    seconds = float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"] if match else 0.0
    if not 1 <= seconds <= 7 * 86400:
        raise UsageError(f"Expected a time such as 10m, got {duration[:20]!r}.", where="--budget")
    return seconds


def _print_notes(warnings: Sequence[str], faults: Sequence[EngineFault]) -> None:
    """Print to stderr what has another effect than expected, and which faults of the engine's list arms may meet."""
    for warning in warnings:
        typer.echo(one_line(f"warning: {warning}"), err=True)
    for fault in faults:
        typer.echo(one_line(f"Known fault of the engine, arms {', '.join(fault.arms)}: {fault.sentence}"), err=True)


def _print_issue(folder: Path, test: StressTest, results: Sequence[ScenarioResult]) -> None:
    """Print the form; on stderr that there is none, so that no tracker is sent it."""
    from benchctl.experiments.stress.issue import stress_issue

    form = stress_issue(folder, test, results)
    typer.echo(form or "There is nothing to report: no fault with a plan that shows it again.", err=form is None)


def _print(folder: Path, test: StressTest, results: Sequence[ScenarioResult]) -> None:
    from benchctl.experiments.stress.judge import limit_of
    from benchctl.reports.terminal import Printout
    from benchctl.words.stress import LEGEND, conclusion, scope, slower_in_use

    out = Printout()
    slots = f", {test.slots} slots" if test.slots else ""
    size = "" if test.plan.size >= 1 else f", {100 * test.plan.size:.0f} % of the full plan"
    out.say(f"Stress test of {test.manifest.recipe_name}: seed {test.plan.seed}{size}{slots}")
    out.say()
    right = ("requests", "errors", "changed", "rejected", "cached", "at once", "accepted", "alone")
    out.rows(("arm", "scenario", "verdict", *right), [_row(result) for result in results], right=right)
    out.say(LEGEND, "dim")
    for result in results:
        out.say()
        out.say(f"{result.arm}: {result.verdict}", f"bold {COLOUR.get(result.verdict, 'yellow')}")
        out.below(conclusion(result.verdict, result.scenario, result.model_dump()))
        _print_evidence(out, test, result)
        exercised = result.exercised
        if exercised.acceptance is not None and (exercised.acceptance_alone or 0) - exercised.acceptance > SLOWER:
            alone = exercised.acceptance_alone or 0.0
            out.below(slower_in_use(result.arm, result.scenario, alone, exercised.acceptance), "yellow")
        for shortest in test.reproductions:
            if (shortest.arm, shortest.scenario) == (result.arm, result.scenario):
                _print_reproduction(out, test, shortest)
    out.say()
    names = dict.fromkeys(result.scenario for result in results)
    out.say(scope(names, test.noise, limit_of(test), test.noise_tokens), "dim")
    if test.status != "finished":
        out.say(f"The test has not come to its end ({test.status}): this is what was answered until then.", "yellow")
    for name, reason in test.inapplicable.items():
        out.say(f"Not run: {name}. With this engine it cannot be: {reason}.", "yellow")
    if test.skipped:
        out.say(f"Left out when the time was spent (raise --budget): {', '.join(test.skipped)}.", "yellow")
    if test.unscored:
        out.say(f"Divergences were not scored: {test.unscored.rstrip('.')}.", "yellow")
    out.say(f"Answers and logs: {folder}", "dim", whole=True)


def _row(result: ScenarioResult) -> tuple[str, ...]:
    exercised, control = result.exercised, result.control

    def share(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.0f} %"

    return (
        result.arm,
        result.scenario,
        result.verdict,
        f"{exercised.requests:,}",
        f"{exercised.errors} / {control.errors}",
        f"{result.changed} / {result.changed_control} of {result.units}",
        share(exercised.rejected),
        "–" if exercised.cached is None else f"{exercised.cached:,}",
        str(exercised.most_at_once),
        share(exercised.acceptance),
        share(exercised.acceptance_alone),
    )


def _print_evidence(out: Printout, test: StressTest, result: ScenarioResult) -> None:
    """Print the first error, the first invalid answer, and the first divergence with both texts."""
    from benchctl.words.stress import likeliest_listed

    answers = test.played[result.arm].answers
    for request in result.failures[:1]:
        out.below(f"{request}: {answers[request].error}")
    for invalid in [*result.unexplained, *result.invalid][:1]:
        answer = answers[invalid.request]
        text = likeliest_listed(answer.listed) if answer.listed else repr(answer.text[:300])
        out.below(f"{invalid.request}: {text}")
    if result.shown is not None:
        side = result.arm if result.shown.against == "first" else test.manifest.baseline
        reference = test.played[side].answers[result.shown.reference]
        out.below(f"{result.shown.reference} of {side}: {reference.text[:300]!r}")
        out.below(f"{result.shown.request} of {result.arm}, from token {result.shown.index} on: "
                  f"{answers[result.shown.request].text[:300]!r}")  # fmt: skip


def _print_reproduction(out: Printout, test: StressTest, shortest: Reproduction) -> None:
    """Print the engine's command and a `curl` line a request."""
    from benchctl.experiments.stress.issue import shell_lines
    from benchctl.words.stress import shows

    out.below(f"The shortest plan. {shows(shortest.shown, shortest.attempts, shortest.shows)}")
    command, lines = shell_lines(test, shortest)
    out.say(f"    {command}", whole=True, most=20_000)
    for line in lines:
        out.say(f"    {line}", whole=True, most=200_000)
