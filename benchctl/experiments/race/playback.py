"""A prompt, answered alone by the baseline and by an arm, and both played back: on a terminal and as an animated SVG.

With speculation the tokens of a round arrive at once: those that the target accepted, and the next, which it adds
itself. Model output goes through `benchctl.text.visible` and is escaped; nothing in it acts on a terminal or a page.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import median

from rich.console import Console, Group, RenderableType
from rich.containers import Lines
from rich.layout import Layout
from rich.panel import Panel
from rich.text import Text

from benchctl.analysis.verdict import describe_speculation
from benchctl.engines.base import Completion, Ledger
from benchctl.errors import EngineError, UsageError
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
from benchctl.text import one_line, visible

NO_VERDICT = "One prompt gives no verdict: use benchctl run."
LEGEND = "Green: arrived at once with the next token."
SAME_ROUND = 0.25
"""Tokens that follow within this share of a plain decode step came from the same round."""


@dataclass(frozen=True)
class Arrival:
    """How many tokens the client had at a moment; `at_s`: seconds since the request was sent."""

    at_s: float
    tokens: int


@dataclass(frozen=True)
class Piece:
    """Text that came at once."""

    at_s: float
    text: str
    tokens: int
    grouped: bool
    """Whether it arrived at once with the token after it, as accepted drafts do; which were, no engine tells."""


@dataclass(frozen=True)
class Playback:
    """The answer of an arm, to be played back."""

    arm: str
    setting: str
    pieces: tuple[Piece, ...]
    acceptance: str = ""
    """The engine's own count of drafted and accepted tokens, as a clause."""

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def end_s(self) -> float:
        """When the last token came."""
        return self.pieces[-1].at_s if self.pieces else 0.0

    def status(self, now_s: float) -> str:
        """Tokens and seconds `now_s` seconds after the request was sent, and the decode rate."""
        arrived = [piece for piece in self.pieces if piece.at_s <= now_s]
        if not arrived:
            return "reading the prompt"
        first_s, last_s = arrived[0].at_s, min(now_s, self.end_s)
        tokens = sum(piece.tokens for piece in arrived)
        decoded = sum(piece.tokens for piece in arrived if piece.at_s > first_s)
        rate = f", {decoded / (last_s - first_s):.1f} tok/s" if decoded else ""
        return f"{tokens} {'token' if tokens == 1 else 'tokens'} in {last_s:.2f} s{rate}"

    def lines(self, now_s: float, columns: int) -> Lines:
        """Return the text by then, wrapped; the style of every run of text is the number of its piece."""
        text = Text()
        for number, piece in enumerate(self.pieces):
            if piece.at_s <= now_s:
                text.append(visible(piece.text), str(number))
        return text.wrap(Console(), columns, tab_size=4)


def plain_step_s(arrivals: Sequence[Arrival]) -> float:
    """Return the median time between two arrivals of an answer without speculation; 0 where it has fewer than two."""
    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(arrivals)]
    return median(gaps) if gaps else 0.0


def pieces_of(arrivals: Sequence[Arrival], prefixes: Sequence[str], step_s: float, *, drafts: bool) -> list[Piece]:
    """Return the pieces of an answer. `prefixes`: its text after 0, 1, … tokens. `drafts`: whether the arm speculates.

    All tokens of a round but the last are grouped; the very first token of an answer comes from prefill.
    """
    found: list[Piece] = []
    before = 0
    for arrival, following in zip(arrivals, [*arrivals[1:], None], strict=True):
        if drafts and following is not None and following.at_s - arrival.at_s <= SAME_ROUND * step_s:
            continue  # a round is complete with its last token
        first = max(before, 1) if drafts else arrival.tokens
        bounds = [before, first, max(first, arrival.tokens - 1), arrival.tokens]
        for number, (start, end) in enumerate(pairwise(bounds)):
            if end > start:
                text = prefixes[end][len(prefixes[start]) :]
                found.append(Piece(arrival.at_s, text, end - start, grouped=number == 1))
        before = arrival.tokens
    return found


def frame(playbacks: Sequence[Playback], now_s: float, width: int, height: int) -> RenderableType:
    """Return the picture `now_s` seconds after both requests were sent."""
    panes, whole = Layout(), Layout()
    panes.split_row(*(Layout(_pane(playback, now_s, width // 2 - 4, max(1, height - 5))) for playback in playbacks))
    foot = Text(f" {now_s:5.1f} s  {LEGEND} {NO_VERDICT}", "dim", no_wrap=True, overflow="ellipsis")
    whole.split_column(panes, Layout(foot, size=1))
    return whole


def _pane(playback: Playback, now_s: float, columns: int, rows: int) -> Panel:
    shown = playback.lines(now_s, columns)[-rows:]
    for line in shown:
        green = [span for span in line.spans if playback.pieces[int(str(span.style))].grouped]
        line.spans = [span._replace(style="green") for span in green]
    status = Text(one_line(playback.status(now_s)), "bold")
    title = Text(f"{one_line(playback.arm)}: {one_line(playback.setting)}")
    return Panel(Group(status, Text(), *shown), title=title, title_align="left")


_CELL, _ROW, _PANE = 7.25, 16, 46
_STYLE = (
    "text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d4d4d4;white-space:pre}"
    ".g{fill:#6fd388}.h{font-weight:bold;fill:#fff}.n{fill:#9a9a9a}"
)


def svg(playbacks: Sequence[Playback], title: str, speed: float) -> str:
    """Return an SVG that plays the answers once and stays at the end; without animation it shows the end."""
    end_s = max(playback.end_s for playback in playbacks)
    bodies = [playback.lines(end_s, _PANE) for playback in playbacks]
    width, height = round(2 * (_PANE + 3) * _CELL), (max(map(len, bodies)) + 5) * _ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{escape(one_line(title))}</title><style>{_STYLE}</style>'
        f'<rect width="{width}" height="{height}" rx="8" fill="#1e1e1e"/>'
    ]
    for place, (playback, body) in enumerate(zip(playbacks, bodies, strict=True)):
        left = round((place * (_PANE + 3) + 1.5) * _CELL, 1)
        heading = escape(one_line(f"{playback.arm}: {playback.setting}", _PANE))
        status = escape(one_line(playback.status(end_s), _PANE)) + _appearing(playback.end_s, end_s, speed)
        parts.append(f'<text x="{left}" y="22" class="h">{heading}</text>')
        parts.append(f'<text x="{left}" y="40" class="n">{status}</text>')
        for row, line in enumerate(body):
            spans = "".join(_span(line, playback, end_s, speed))
            parts.append(f'<text x="{left}" y="{(row + 2) * _ROW + 26}">{spans}</text>')
    foot = escape(f"{LEGEND} {NO_VERDICT}" + (f" Speed: {speed:g}×." if speed != 1 else ""))
    parts.append(f'<text x="{1.5 * _CELL:.1f}" y="{height - 10}" class="n">{foot}</text></svg>\n')
    return "".join(parts)


def _span(line: Text, playback: Playback, end_s: float, speed: float) -> list[str]:
    """Return the runs of text of a line, each appearing when it arrived."""
    found = []
    for span in line.spans:
        piece = playback.pieces[int(str(span.style))]
        colour = ' class="g"' if piece.grouped else ""
        text = escape(line.plain[span.start : span.end])
        found.append(f"<tspan{colour}>{text}{_appearing(piece.at_s, end_s, speed)}</tspan>")
    return found


def _appearing(at_s: float, end_s: float, speed: float) -> str:
    share = min(0.9999, at_s / end_s) if end_s else 0.0
    return (
        f'<animate attributeName="fill-opacity" values="0;1" keyTimes="0;{share:.4f}" calcMode="discrete" '
        f'dur="{end_s / speed:.2f}s" fill="freeze"/>'
    )


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
