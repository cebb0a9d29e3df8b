"""A prompt, answered without speculation and by an arm, each alone on the machine: for playing both back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from benchctl.analysis.verdict import describe_speculation
from benchctl.engines.base import Completion, Ledger
from benchctl.errors import EngineError, UsageError
from benchctl.experiments.race.playback import Arrival, Playback, pieces_of, plain_step_s
from benchctl.measure.cell import running
from benchctl.measure.plan import keep_only
from benchctl.measure.prepare import Prepared
from benchctl.measure.progress import RunProgress
from benchctl.measure.recording import require_attested
from benchctl.measure.requests import warm_up
from benchctl.models.resolved import ResolvedModel
from benchctl.models.vocabulary import token_bytes
from benchctl.prompts.suite import Message, Prompt, PromptItem
from benchctl.recipes.problems import did_you_mean, quoted
from benchctl.recipes.schema import Arm, Recipe


def pair_of(recipe: Recipe, name: str | None) -> Recipe:
    """Return the recipe with its baseline and an arm: `name`, else the first that speculates. Raises UsageError."""
    recipe = recipe.alone("A race")
    chosen = name or next((arm.name for arm in recipe.arms if arm.speculation is not None), None)
    if chosen is None:
        raise UsageError("No arm of this recipe speculates.", where=recipe.name, fix="Add one, then race it.")
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
    if requested is None:
        return prompts[0]
    task, _, number = requested.partition("/")
    for item in prompts:
        if item.task == task and number in ("", str(item.prompt_idx)):
            return item
    if " " in requested.strip() or "\n" in requested:
        own = Prompt(messages=(Message(role="user", content=requested),)) if chat else Prompt(prompt=requested)
        return PromptItem(task="own", prompt_idx=0, prompt=own)
    names = dict.fromkeys(f"{item.task}/{item.prompt_idx}" for item in prompts)
    raise UsageError(
        f"There is no prompt {quoted(requested)}.",
        where="--prompt",
        fix=did_you_mean(requested, list(names)).strip() or f"Write a text, or one of {', '.join(list(names)[:8])}, …",
    )


def race(prepared: Prepared, item: PromptItem, logs: Path, progress: RunProgress) -> list[Playback]:
    """Answer a prompt by each arm of `prepared` in turn, the baseline first. Raises EngineError.

    `logs`: where engines write theirs.
    """
    recipe = prepared.recipe
    arms = sorted(recipe.arms, key=lambda arm: arm.name != recipe.baseline)
    found: list[Playback] = []
    step_s = 0.0
    for arm in arms:
        progress.note(f"{arm.name} answers {item.task}/{item.prompt_idx}, alone on the machine.")
        completion, arrivals = _answer(prepared, arm, item, logs / f"{arm.name}.log")
        if not arrivals:
            raise EngineError(f"{arm.name} gave an empty answer.", kind="protocol", where=f"{item.task}")
        step_s = step_s or plain_step_s(arrivals)
        prefixes = prefixes_of(completion, prepared.setup_of(arm.name).models.target)
        pieces = pieces_of(arrivals, prefixes, step_s, drafts=arm.speculation is not None)
        setting = describe_speculation(arm.speculation.model_dump() if arm.speculation else None)
        acceptance = "" if arm.speculation is None else acceptance_of(completion.ledger)
        found.append(Playback(arm.name, setting, tuple(pieces), acceptance))
    return found


def acceptance_of(ledger: Ledger) -> str:
    """Return the engine's own count as a clause."""
    counts = ledger.accepted_by_position
    accepted = sum(counts) if ledger.accepted is None and counts else ledger.accepted
    drafted = "not reported" if ledger.drafted is None else str(ledger.drafted)
    share = f" ({accepted / ledger.drafted:.0%})" if accepted is not None and ledger.drafted else ""
    return f"drafted {drafted}, accepted {'not reported' if accepted is None else accepted}{share}"


def _answer(prepared: Prepared, arm: Arm, item: PromptItem, log: Path) -> tuple[Completion, list[Arrival]]:
    engine, sampling = prepared.engines[arm.name], prepared.recipe.sampling_of(arm)
    arrivals: list[tuple[float, int]] = []
    with running(engine.start(prepared.launches[arm.name], log)) as server:
        require_attested(server.attest(None), server)
        _, warm = warm_up(server, sampling)
        rendered, sent = server.render(item.prompt), time.perf_counter()
        on_tokens = arrivals.append
        done = asyncio.run(server.complete(rendered, sampling, lambda count: on_tokens((time.perf_counter(), count))))
        drafted = [answer.ledger.drafted for answer in (warm, done) if answer.ledger.drafted is not None]
        require_attested(server.attest(sum(drafted) if drafted else None), server)
    sent = done.sent_at or sent
    return done, [Arrival(at - sent, count) for at, count in arrivals if count]


def prefixes_of(completion: Completion, target: ResolvedModel) -> list[str]:
    """Return the text of an answer after 0, 1, … tokens.

    From the tokens' own spelling where the model's vocabulary is known, else by their share of the text.
    """
    total, text = completion.n_predicted, completion.text
    shares = [text[: round(len(text) * count / total)] for count in range(total)] + [text]
    vocabulary = token_bytes(target.path) if target.files and target.folder is None else None
    if vocabulary is None or completion.token_ids is None:
        return shares
    ids = completion.token_ids
    spelled = [vocabulary.spelling(ids[:count]).decode("utf-8", "ignore") for count in range(total)]
    fits = all(text.startswith(prefix) for prefix in spelled)
    return [*spelled, text] if fits else shares
