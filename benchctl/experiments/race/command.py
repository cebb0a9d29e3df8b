"""`benchctl report race`: a prompt, answered by the baseline and by an arm in turn, each alone on the machine."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli import complete, options
from benchctl.errors import EngineError, UsageError

if TYPE_CHECKING:
    from benchctl.engines.base import Completion
    from benchctl.measure.prepare import Prepared
    from benchctl.prompts.suite import PromptItem
    from benchctl.recipes.schema import Arm, Recipe


def race(
    work: options.Work = options.NOTHING_NAMED,
    arm: Annotated[
        str | None,
        typer.Option(metavar="ARM", help="Default: the first that speculates.", autocompletion=complete.arms),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TASK/N|TEXT", help="A prompt of the suite, or your own text.")
    ] = None,
    here: options.Here = options.AS_FOUND,
) -> None:
    """Answer a prompt with and without speculation.

    The two are measured in turn, each alone on the machine. A single prompt gives no verdict: use `benchctl run`.
    """
    from rich.console import Console

    from benchctl.measure.progress import progress_for
    from benchctl.measure.run import signals_interrupt
    from benchctl.reports.terminal import Printout

    standing = work.standing(Path("results"), here)
    pair = pair_of(standing.recipe, arm)
    progress = progress_for(Console(stderr=True), quiet=False)
    out, texts = Printout(), set()
    with signals_interrupt(), tempfile.TemporaryDirectory(prefix="benchctl-") as logs:
        prepared = standing.prepare(here.engine_binary, here.models_dir, progress.note, pair)
        asked = find_prompt(prepared.prompts, prompt, chat=prepared.suite.kind == "chat")
        for contestant in sorted(pair.arms, key=lambda each: each.name != pair.baseline):
            progress.note(f"{contestant.name} answers {asked.task}/{asked.prompt_idx}, alone on the machine.")
            done = _answer(prepared, contestant, asked, Path(logs) / f"{contestant.name}.log")
            out.say(f"{contestant.name} {outcome(contestant, done)}")
            texts.add(done.text)
    out.say("Both answers are the same text." if len(texts) == 1 else "The answers differ.")
    out.say("A single prompt gives no verdict: use benchctl run.", "dim")


def outcome(arm: Arm, done: Completion) -> str:
    """Return how an arm drafts, what its answer took, and the engine's own count of draft tokens, in a line."""
    from benchctl.analysis.verdict import describe_speculation

    setting = describe_speculation(arm.speculation.model_dump() if arm.speculation else None)
    rate = "" if done.decode_rate is None else f", {done.decode_rate:.1f} tok/s"
    line = f"({setting}): {done.n_predicted} tokens in {done.e2e_s:.2f} s{rate}"
    if arm.speculation is None:
        return line
    counts = done.ledger.accepted_by_position
    accepted = sum(counts) if done.ledger.accepted is None and counts else done.ledger.accepted
    drafted = "not reported" if done.ledger.drafted is None else str(done.ledger.drafted)
    share = f" ({accepted / done.ledger.drafted:.0%})" if accepted is not None and done.ledger.drafted else ""
    return f"{line}; drafted {drafted}, accepted {'not reported' if accepted is None else accepted}{share}"


def _answer(prepared: Prepared, arm: Arm, asked: PromptItem, log: Path) -> Completion:
    """Return the answer of an arm's engine, warm and attested before and after it. Raises EngineError."""
    import asyncio

    from benchctl.measure.cell import running
    from benchctl.measure.recording import require_attested
    from benchctl.measure.requests import warm_up

    sampling = prepared.recipe.sampling_of(arm)
    with running(prepared.engines[arm.name].start(prepared.launches[arm.name], log)) as server:
        require_attested(server.attest(None), server)
        _, warm = warm_up(server, sampling)
        done = asyncio.run(server.complete(server.render(asked.prompt), sampling))
        drafted = [answer.ledger.drafted for answer in (warm, done) if answer.ledger.drafted is not None]
        require_attested(server.attest(sum(drafted) if drafted else None), server)
    if not done.n_predicted:
        raise EngineError(f"{arm.name} gave an empty answer.", kind="protocol", where=asked.task)
    return done


def pair_of(recipe: Recipe, name: str | None) -> Recipe:
    """Return the recipe with its baseline and an arm: `name`, else the first that speculates. Raises UsageError."""
    from benchctl.measure.plan import keep_only
    from benchctl.recipes.problems import quoted

    recipe = recipe.alone("A race")
    chosen = name or next((arm.name for arm in recipe.arms if arm.speculation is not None), None)
    if chosen is None:
        raise UsageError("No arm of this recipe speculates.", where=recipe.name, fix="Add an arm, then race it.")
    pair = keep_only(recipe, [chosen])
    if len(pair.arms) != 2 or any(arm.overlapping for arm in pair.arms):
        raise UsageError(
            f"A race compares one arm with no speculation, one request at a time; {quoted(chosen)} does not fit.",
            where="--arm",
            fix=f"The arms are: {', '.join(arm.name for arm in recipe.arms)}.",
        )
    return pair


def find_prompt(prompts: Sequence[PromptItem], requested: str | None, *, chat: bool) -> PromptItem:
    """Return the prompt `TASK/NUMBER` or `TASK` of a suite, the first for none, or the user's own text."""
    from benchctl.prompts.suite import Message, Prompt, PromptItem
    from benchctl.recipes.problems import did_you_mean, quoted

    if requested is None:
        return prompts[0]
    names = {f"{asked.task}/{asked.prompt_idx}": asked for asked in prompts}
    by_task = {asked.task: asked for asked in reversed(prompts)}
    if found := names.get(requested) or by_task.get(requested):
        return found
    if " " in requested.strip() or "\n" in requested:
        own = Prompt(messages=(Message(role="user", content=requested),)) if chat else Prompt(prompt=requested)
        return PromptItem(task="own", prompt_idx=0, prompt=own)
    raise UsageError(
        f"There is no prompt {quoted(requested)}.",
        where="--prompt",
        fix=did_you_mean(requested, list(names)).strip() or f"Write a text, or {', '.join(list(names)[:8])}, …",
    )
