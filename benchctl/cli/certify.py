"""`benchctl runs certify`: write the certificate of a run, or check it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchctl.cli import complete
from benchctl.cli.options import JsonForText, Results
from benchctl.reports.json_output import print_json

if TYPE_CHECKING:
    from benchctl.experiments.gate.certificate import Statement


def certify(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="The run to certify, the latest by default.", autocompletion=complete.runs
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The certificate.", dir_okay=False)
    ] = Path("certificate.json"),
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Check this certificate instead.", dir_okay=False)
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--run", metavar="RUN", help="With --check: make it again from this run.", autocompletion=complete.runs
        ),
    ] = None,
    signers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --check: verify FILE.sig by this allowed signers file.", dir_okay=False
        ),
    ] = None,
    results: Results = Path("results"),
    as_json: JsonForText = False,
) -> None:
    """Write a small file that says what a run showed, an in-toto statement of its verdict with hashes; or check it.

    --check exits with 0 only where every check that was asked for holds, some was, and the result is not
    FAILED.
    """
    from benchctl.data.store import resolve_run
    from benchctl.errors import GateError, UsageError
    from benchctl.experiments.gate import certificate
    from benchctl.writing import write_whole

    if check is None:
        if against is not None or signers is not None:
            raise UsageError("These options check a certificate.", where="--run, --signers", fix="Add --check FILE.")
        statement = certificate.make_certificate(resolve_run(run, results))
        write_whole(output, certificate.text_of(statement))
        _show(statement, [f"Certificate: {output}"], as_json=as_json)
        return
    if run is not None:
        raise UsageError(
            "--check takes its run with --run.", where=run, fix=f"benchctl runs certify --check FILE --run {run}"
        )
    statement = certificate.read_certificate(check)
    verified = []
    if against is not None:
        certificate.check_against_run(statement, check, resolve_run(against, results))
        verified.append(f"It says what the files of {against} show.")
    if signers is not None:
        verified.append(f"{certificate.check_signature(check, signers)} signed it, who vouches for the records.")
    _show(statement, verified or ["Not verified."], as_json=as_json)
    if not verified:
        raise GateError(
            "not verified: anybody can have written it.",
            where=str(check),
            fix="Add --run RUN, to make it again from the records, or --signers FILE, to verify who signed it.",
        )
    if statement["predicate"]["result"] == "FAILED":
        raise GateError(
            "The certificate is sound, and says that the output is not shown to be lossless.", where=str(check)
        )


def _show(statement: Statement, sentences: list[str], *, as_json: bool) -> None:
    from benchctl.text import one_line

    if as_json:
        print_json("runs certify", {"statement": statement, "said": sentences})
        return
    predicate = statement["predicate"]
    typer.echo(f"Result: {predicate['result']}")
    for arm, judged in dict(predicate.get("benchctl_verdicts") or {}).items():
        verdict = f": {judged.get('verdict')}. {_scope(judged.get('scope'))}" if isinstance(judged, dict) else ""
        typer.echo(one_line(f"  {arm}{verdict}".rstrip(), 400))
    for sentence in sentences:
        typer.echo(one_line(sentence, 400))


def _scope(stated: object) -> str:
    """Return the scope of a verdict as a line; empty for anything else, since anybody can have written the file."""
    from pydantic import ValidationError

    from benchctl.analysis.losslessness import Scope
    from benchctl.words.scope import scope_sentence

    try:
        return scope_sentence(Scope.model_validate(stated))
    except ValidationError:
        return ""
