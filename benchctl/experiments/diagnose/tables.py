"""The tables of a diagnosis: the draft's distribution against the target's, its cost, and the predicted speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchctl.experiments.diagnose.judge import (
    DEPTHS,
    HOPELESS,
    METHOD,
    VIABLE,
    Agreement,
    DraftAcceptance,
    DraftDiagnosis,
    Estimate,
    Payoff,
    Predicted,
)
from benchctl.experiments.diagnose.stored import Diagnosis
from benchctl.reports.columns import Column, Name, Table, Tone, numeric
from benchctl.reports.terminal import Printout
from benchctl.words import numbers

_TONES: dict[str | None, Tone] = {"viable": "good", "not viable": "bad", "between": "open"}


def acceptance_table(drafts: Sequence[DraftDiagnosis]) -> Table[DraftAcceptance]:
    """A row for every draft, temperature and task."""
    columns: list[Column[DraftAcceptance]] = [
        Column("Draft", "draft", Name, heads=True),
        Column("Sampling", "temperature", lambda value: f"T={value:g}" if value else "greedy", heads=True),
        Column("Task", "task"),
        numeric("Prompts", "prompts", numbers.count),
        numeric("Per token", "per_token", _estimate, explain="probability that a draft token is accepted."),
        *_by_depth("α({})", "all_tokens", f"probability that all {DEPTHS[0]} draft tokens in a row are accepted."),
        *_by_depth(
            "÷{}",
            "accepted_share",
            "accepted ÷ k, the expected share of k draft tokens that is accepted: the studies' α(k).",
        ),
        numeric(
            "Distance",
            "distance",
            cell=_distance,
            optional=True,
            explain="total variation over the target's 100 likeliest tokens at temperature 1, all others as a single "
            "outcome; a range where the engine does not report all of them.",
        ),
        numeric(
            "Top-1",
            "agreement",
            numbers.percent,
            optional=True,
            explain="share of positions where draft and target have the same likeliest token.",
        ),
    ]
    rows = [row for draft in drafts for row in draft.acceptance]
    note = f"In brackets: {METHOD}."
    return Table("diagnosis", "Draft and target distributions", columns, rows, note)


def _by_depth(header: str, field: str, explain: str) -> list[Column[DraftAcceptance]]:
    """A column for each of `DEPTHS`, of which the first is explained."""

    def column(depth: int) -> Column[DraftAcceptance]:
        explanation = explain if depth == DEPTHS[0] else ""
        return numeric(header.format(depth), lambda row: getattr(row, field).get(depth), _estimate, explain=explanation)

    return [column(depth) for depth in DEPTHS]


class _Predicted(NamedTuple):
    """A draft at a depth."""

    draft: DraftDiagnosis
    payoff: Payoff


def _depth(row: _Predicted) -> str:
    return f"{row.payoff.depth} (best)" if row.payoff == row.draft.best else str(row.payoff.depth)


def payoff_table(drafts: Sequence[DraftDiagnosis]) -> Table[_Predicted]:
    """The predicted speed-up at the depths `DEPTHS`, and at the best."""
    columns: list[Column[_Predicted]] = [
        Column("Draft", "draft.draft", Name, heads=True),
        Column("Sampling", "payoff.temperature", lambda value: f"T={value:g}" if value else "greedy", heads=True),
        numeric("Depth k", "payoff.depth", cell=_depth),
        numeric("E", "payoff.tokens", numbers.decimal, explain="tokens per round by the acceptance per token."),
        numeric(
            "E by depth",
            "payoff.measured_tokens",
            numbers.decimal,
            explain="1 + α(1) + … + α(k), without assuming equal acceptance at every depth.",
        ),
        numeric(
            "v",
            "payoff.check",
            numbers.decimal,
            optional=True,
            explain="the target's pass over k + 1 tokens over its step, measured.",
        ),
        numeric(
            "Speed-up",
            "payoff.speedup_measured",
            numbers.ratio,
            explain="E / (v + k·c), c a draft step, measured; v is 1 where it was not timed.",
            tone=lambda row: _tone(row.payoff.speedup_measured),
        ),
        numeric(
            "By FLOP",
            "payoff.speedup_flops",
            numbers.ratio,
            explain="E / (1 + k·c) with the draft's share of floating-point operations.",
        ),
    ]
    rows = [
        _Predicted(draft, payoff)
        for draft in drafts
        for payoff in draft.payoff
        if payoff.depth in DEPTHS or (draft.best and payoff.depth == draft.best.depth)
    ]
    return Table("diagnosis-payoff", "Predicted speed-up", columns, rows)


def agreement_table(agreement: Agreement) -> Table[Predicted]:
    """A row an arm that a run measured: predicted beside measured."""
    columns: list[Column[Predicted]] = [
        Column("Arm", "arm", Name, heads=True),
        Column("Draft", "draft", Name),
        numeric("Tokens a round", "tokens", numbers.decimal, explain="predicted; E by depth."),
        numeric("measured", "tokens_measured", numbers.decimal),
        numeric("off by", lambda row: _off(row.tokens, row.tokens_measured), numbers.difference),
        numeric("Speed-up", "speedup", numbers.ratio),
        numeric("measured", "speedup_measured", numbers.ratio),
        numeric("off by", lambda row: _off(row.speedup, row.speedup_measured), numbers.difference),
    ]
    rs = (("tokens a round", agreement.tokens_r), ("speed-up", agreement.speedup_r))
    correlations = ", ".join(f"{name} {r:.2f}" for name, r in rs if r is not None)
    note = f"Pearson's r over {len(agreement.arms)} arms: {correlations}." if correlations else ""
    title = f"Predicted, and measured by run {agreement.run}"
    return Table("diagnosis-agreement", title, columns, agreement.arms, note)


def _off(predicted: float | None, measured: float | None) -> float | None:
    return predicted / measured - 1 if predicted is not None and measured else None


def cost_table(drafts: Sequence[DraftDiagnosis]) -> Table[DraftDiagnosis]:
    """The cost of a step of every draft, and the target's perplexity without a part."""
    columns: list[Column[DraftDiagnosis]] = [
        Column("Draft", "draft", Name, heads=True),
        numeric("c", "cost", numbers.decimal, explain="cost of a draft step over a target step, measured."),
        numeric("c by FLOP", "cost_flops", numbers.decimal, explain="the same in floating-point operations."),
        numeric("Perplexity", "perplexity", numbers.decimal, optional=True),
        numeric("without it", "perplexity_removed", numbers.decimal, optional=True),
        numeric("Ratio", "perplexity_ratio", numbers.ratio, optional=True),
        Column(
            "By the ratio",
            "perplexity_verdict",
            tone=lambda row: _TONES.get(row.perplexity_verdict, ""),
            explain=f"the ablation study's, of a --corpus: viable below {VIABLE:g}×, not viable above {HOPELESS:g}×.",
            optional=True,
        ),
    ]
    return Table("diagnosis-cost", "Cost of a draft step", columns, drafts)


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return numbers.ABSENT
    if estimate.interval is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.interval.low:.2f}, {estimate.interval.high:.2f}]"


def _distance(row: DraftAcceptance) -> str:
    if row.distance is None or row.distance_most is None:
        return numbers.ABSENT
    if row.distance_most - row.distance < 0.005:
        return f"{row.distance:.2f}"
    return f"{row.distance:.2f} to {row.distance_most:.2f}"


def _tone(speedup: float | None) -> Tone:
    return "" if speedup is None else "good" if speedup > 1 else "bad"


def print_diagnosis(
    folder: Path, diagnosis: Diagnosis, drafts: Sequence[DraftDiagnosis], agreement: Agreement | None
) -> None:
    """Print the tables, and which drafts were not diagnosed."""
    out, settings = Printout(), diagnosis.settings
    out.say(
        f"{diagnosis.manifest.recipe_name}: {len(diagnosis.manifest.prompts)} prompts, answers of at most "
        f"{settings.tokens} tokens, greedy and at temperature {settings.temperature:g}"
    )
    out.say()
    tables: list[Table[Any]] = [acceptance_table(drafts), cost_table(drafts), payoff_table(drafts)]
    for table in (*tables, *([agreement_table(agreement)] if agreement else [])):
        if table.rows:
            out.table(table, titled=True)
            out.say()
    for draft in drafts:
        if draft.what:
            out.say(f"{draft.draft}: {'; '.join(f'{key} {value}' for key, value in draft.what.items())}", "dim")
        if not draft.exact:
            out.say(
                f"{draft.draft}: the engine reports only the {settings.top} likeliest tokens of each model. "
                f"Acceptances are lower bounds; at most {100 * draft.truncated:.2g} % of a sampled distribution lies "
                "beyond those tokens. Perplexity with a part removed is reported by the transformers engine only.",
                "dim",
            )
        if draft.error:
            out.say(f"{draft.draft} could not be scored: {draft.error}", "yellow")
    for arm, reason in diagnosis.not_reached.items():
        out.say(f"{arm} is not diagnosed: {reason}.", "yellow")
    out.say(f"Saved: {folder}", whole=True)
