"""`benchctl compare --replicate`: measure the work of another's run here, and say whether its claims agree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli import complete, options
from benchctl.errors import GateError
from benchctl.reports.json_output import print_json

if TYPE_CHECKING:
    from benchctl.analysis.comparison.replication import ReplicatedClaim, Replication

UNITS = {"decode rate": ", tok/s", "ttft": ", s", "memory": ", bytes", "energy": ", J a token"}


def replicate(
    theirs: Annotated[
        str, typer.Argument(metavar="RUN", help="Another's run, or imported records.", autocompletion=complete.runs)
    ],
    own: Annotated[
        str | None,
        typer.Argument(
            metavar="MINE",
            help="A run of the same work here, or a recipe of it.",
            show_default="their recipe is measured",
            autocompletion=complete.runs,
        ),
    ] = None,
    results: options.Results = Path("results"),
    arm: options.OnlyArms = None,
    target: options.Target = None,
    draft: options.Draft = None,
    here: options.Here = options.AS_FOUND,
    as_json: options.JsonForTables = False,
    quiet: options.NoTables = False,
) -> None:
    """Measure another's run here: do its claims agree?

    Models are found by hash in the usual folders, or named with -t and -d. Exits with 1 where a claim differs, or
    nothing can be told of it (benchctl docs claims).
    """
    from benchctl.experiments.replicate.session import replication

    sources = {role: source for role, source in (("target", target), ("draft", draft)) if source is not None}
    found = replication(theirs, own, results, arm or (), sources, here, quiet=quiet or as_json)
    agree, differ, untold = (found.those(outcome) for outcome in ("agrees", "differs", "cannot tell"))
    if as_json:
        print_json("compare --replicate", {**found.model_dump(), "agrees": bool(agree) and not (differ or untold)})
    elif not quiet:
        _print(found)
    if differ:
        named = ", ".join(f"{claim.arm} {claim.what}" for claim in differ[:6])
        raise GateError(f"{len(differ)} of {len(agree) + len(differ)} claims differ here: {named}.", where=theirs)
    if untold:
        raise GateError(f"Of {len(untold)} claims nothing can be told.", where=theirs, fix=untold[0].why)
    if not agree:
        raise GateError("No claim could be compared.", where=theirs, fix=found.claims[0].why if found.claims else None)


def _print(found: Replication) -> None:
    from benchctl.reports import numbers
    from benchctl.reports.columns import Column, Name, Table, Tone, interval
    from benchctl.reports.terminal import Printout

    tones: dict[str, Tone] = {"agrees": "good", "differs": "bad"}

    def shown(value: float | str | None) -> str:
        return numbers.ABSENT if value is None else value if isinstance(value, str) else f"{value:.4g}"

    columns: tuple[Column[ReplicatedClaim], ...] = (
        Column("arm", "arm", Name, heads=True),
        Column("claim", "what", lambda what: f"{what}{UNITS.get(what, '')}"),
        Column("theirs", "theirs", shown, align="right"),
        Column("here", "here", shown, align="right"),
        interval("here/theirs, 95 %", "interval", optional=True),
        Column("outcome", "outcome", tone=lambda claim: tones.get(claim.outcome, "open")),
    )
    out = Printout()
    out.say(f"Theirs {found.theirs}, here {found.here}")
    out.table(Table("replicated", "Replicated", columns, found.claims))
    reasons: dict[str, list[str]] = {}
    for claim in found.claims:
        if claim.why:
            reasons.setdefault(claim.why, []).append(f"{claim.arm} {claim.what}")
    for why, claims in reasons.items():
        out.say(f"{', '.join(claims)}: {why}", "yellow", whole=True)
    for note in found.notes:
        out.say(note, whole=True)
