"""Renders the page and the Markdown report from one view of run and analysis; everything untrusted is escaped here."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchctl.analysis.conditions.results import DIMENSIONS
from benchctl.analysis.lossy import lossy_label
from benchctl.analysis.results import ALL_TASKS, Analysis
from benchctl.data.store import RunData
from benchctl.reports import conclusion, facts, numbers, sweep, untrusted
from benchctl.reports.figures import style
from benchctl.reports.forks import fork_rows, margin, nats, noise_rows, replayed, start
from benchctl.text import visible

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from benchctl.reports.figures.draw import Drawing


MOST_FORKS = 12
"""So many differing answers of an arm are shown; `analysis.json` has them all."""


def render_html(run: RunData, analysis: Analysis, drawings: Sequence[Drawing]) -> str:
    """The self-contained page: inline styles and figures, no script, nothing fetched."""
    environment = _environment(visible, autoescape=True)
    environment.filters |= {"inline_svg": _inline_svg, "lossy": _lossy(analysis)}
    return environment.get_template("page.html.j2").render(_view(run, analysis, drawings))


def render_markdown(run: RunData, analysis: Analysis, drawings: Sequence[Drawing]) -> str:
    """The Markdown report; text is escaped unless a filter made it a code span or a fenced block."""
    from markupsafe import Markup

    environment = _environment(untrusted.markdown_text, autoescape=False)

    def code(text: str) -> Markup:
        return Markup(untrusted.markdown_code(text))  # noqa: S704 - escaped for Markdown just here

    def fence(text: str, language: str) -> Markup:
        return Markup(untrusted.markdown_block(text, language))  # noqa: S704 - escaped for Markdown just here

    def escaped(text: str) -> Markup:
        return Markup(text)  # noqa: S704 - what a macro of the template made of parts that were each escaped

    environment.filters |= {"code": code, "fence": fence, "escaped": escaped, "lossy": _lossy(analysis)}
    text = environment.get_template("report.md.j2").render(_view(run, analysis, drawings))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _environment(escape: Callable[[str], str], *, autoescape: bool) -> Environment:
    """An environment in which every text that a template shows goes through `escape`, unless it is `Markup`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: object) -> object:
        return escape(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PackageLoader("benchctl.reports"),
        autoescape=autoescape,  # noqa: S701 - off for Markdown alone, where `escape` does it
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for function in (
        *(numbers.ratio, numbers.percent, numbers.rate, numbers.decimal, numbers.count, numbers.seconds, numbers.size),
        *(numbers.interval, numbers.between_blocks, numbers.moment),
        *(facts.command, facts.flatten),
        *(margin, nats, start),
        *(sweep.spread, sweep.token_time, sweep.short),
    ):
        environment.filters[function.__name__] = function
    return environment


def _lossy(analysis: Analysis) -> Callable[[str], str]:
    """A filter from an arm's name to its label, empty for most, that follows the name in every table."""
    labels = {verdict.arm: lossy_label(verdict.lossy) for verdict in analysis.verdicts}
    return lambda arm: labels.get(arm, "")


def _view(run: RunData, analysis: Analysis, drawings: Sequence[Drawing]) -> dict[str, Any]:
    """Everything that the templates show, by name."""
    manifest = run.manifest
    differing = {
        arm.arm: [comparison for comparison in arm.comparisons if comparison.outcome != "identical"]
        for arm in analysis.losslessness
    }
    methods = {row.interval.method for row in analysis.speedups if row.interval}
    overlapping = {row.arm for row in analysis.sweep.levels if row.overlapping} if analysis.sweep else set()
    return {
        "analysis": analysis,
        "manifest": manifest,
        "headline": conclusion.headline(analysis),
        "fidelity": conclusion.fidelity(analysis),
        "notices": conclusion.notices(run, analysis),
        "verdicts": conclusion.compared(analysis),
        "pays": conclusion.PAYS,
        "overall": {row.arm: row for row in analysis.speedups if row.task == ALL_TASKS and row.arm not in overlapping},
        "overlapping": overlapping,
        "no_interval": numbers.no_interval(analysis),
        "methods": sorted(methods),
        "arm_ids": {arm: f"arm-{number}" for number, arm in enumerate(analysis.arms)},
        "all_tasks": ALL_TASKS,
        "plain_told": any(row.plain_steps is not None for row in analysis.acceptance),
        "depth": max((len(row.position_unconditional or ()) for row in analysis.acceptance), default=0),
        "draft_cost_known": any(cost.draft_cost is not None for cost in analysis.costs),
        "drawings": [drawing for drawing in drawings if drawing.varies is None],
        "sweep_drawings": [drawing for drawing in drawings if drawing.varies is not None],
        "findings": sweep.findings(analysis),
        "closed_rows": sweep.closed_rows(analysis),
        "open_rows": sweep.open_rows(analysis),
        "temperature_rows": sweep.temperature_rows(analysis),
        "several": {name: analysis.sweep is not None and name in analysis.sweep.dimensions for name in DIMENSIONS},
        "differing": [comparison for found in differing.values() for comparison in found[:MOST_FORKS]],
        "forks": fork_rows(analysis),
        "noise": noise_rows(analysis),
        "replayed": replayed(run),
        "not_shown": sum(max(0, len(found) - MOST_FORKS) for found in differing.values()),
        "run_warnings": manifest.warnings if manifest else [],
        "engine_facts": facts.engine(manifest) if manifest else [],
        "models": facts.models(manifest) if manifest else [],
        "recipe_yaml": facts.recipe_yaml(manifest) if manifest else "",
    }


def _inline_svg(drawing: Drawing) -> Markup:
    """The figure for inlining: its colours follow the page's theme, its ids are its own, and it says what it shows."""
    from markupsafe import Markup, escape

    svg = drawing.svg or ""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{drawing.name}-", svg)
    themed = {
        style.INK: "currentColor",
        style.SOFT: "var(--soft)",
        style.GRID: "var(--line)",
        style.PAPER: "var(--card)",
    }
    for colour, variable in themed.items():
        svg = svg.replace(colour, variable)
    opening = re.search(r'viewBox="[^"]*"', svg)
    body = svg[svg.index(">") + 1 :]
    head = f'<svg role="img" aria-label="{escape(drawing.alt)}" {opening[0] if opening else ""}>'
    return Markup(head + body)  # noqa: S704 - drawn by matplotlib from numbers; its labels are glyph outlines
