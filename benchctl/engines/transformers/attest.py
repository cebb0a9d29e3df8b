"""Checking that the server ran as its command line requests, by what it reports of itself and what it counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from benchctl.engines.base import Attestation, Ledger
from benchctl.engines.common.metrics import Tally
from benchctl.text import one_line

_REPORT = "Report it to benchctl, with the engine's log."
_ROUNDS_NEED_TOKENS = 3
"""Shorter answers have no draft: the first token is the prompt's, the last is never drafted."""


def contradiction(ledger: Ledger, tokens: int, *, loose: bool) -> str | None:
    """Return how an answer's counts contradict its tokens: each step brings what was accepted and one token more.

    `loose`: one more is counted where a draft ended the answer, or the first round also read the prompt.
    """
    drafted, accepted = ledger.drafted or 0, ledger.accepted or 0
    steps = 1 + (ledger.rounds or 0) + (ledger.plain_steps or 0)
    if accepted <= drafted and steps + accepted - tokens in ((0, 1) if loose else (0,)):
        return None
    return f"{tokens} tokens came, and the server counts {steps} steps, {accepted} of {drafted} drafts accepted"


def attest(
    info: Mapping[str, Any],
    tally: Tally,
    contradiction: str | None,
    *,
    model: str,
    dtype: str,
    speculation: Mapping[str, Any] | None,
) -> Attestation:
    """Return the attestation of a cell; `speculation` is what the command line requests."""
    reported = info.get("speculation")
    evidence = tuple(
        f"GET /info: {name} = {one_line(json.dumps(info.get(name)), 400)}"
        for name in ("model", "class", "dtype", "device", "torch", "transformers", "self_test", "speculation")
    )
    counted = f"{tally.rounds} rounds, {tally.drafted} draft tokens, {tally.accepted} accepted"
    evidence = (*evidence, f"{tally.answers} answers: {counted}; the longest has {tally.longest} tokens")
    failure = _wrong_server(info, model, dtype) or _wrong_speculation(reported, speculation, tally)
    if contradiction is not None:
        failure = f"The server's figures contradict each other: {contradiction}.", _REPORT
    if failure:
        return Attestation("failed", evidence, *failure)
    if speculation is None:
        return Attestation("off", evidence)
    return Attestation("active" if tally.drafted else "idle", evidence)


def _wrong_server(info: Mapping[str, Any], model: str, dtype: str) -> tuple[str, str] | None:
    if info.get("model") != model:
        return f"The server serves {str(info.get('model'))[:200]}, not {model}.", "Run it again."
    if dtype != "auto" and info.get("dtype") != dtype:
        return f"The weights are in {one_line(str(info.get('dtype')), 40)}, but {dtype} was requested.", _REPORT
    return None


def _wrong_speculation(reported: object, requested: Mapping[str, Any] | None, tally: Tally) -> tuple[str, str] | None:
    if requested is None:
        return (
            None
            if reported is None and not tally.drafted
            else ("The server speculates, but no speculation was requested.", _REPORT)
        )
    if not isinstance(reported, dict):
        return "There is no evidence that the server speculates.", _REPORT
    if (reported.get("type"), reported.get("max")) != (requested["type"], requested["max"]):
        runs = one_line(str(reported), 200)
        return f"{requested['type']} to depth {requested['max']} was requested, but the server reports {runs}.", _REPORT
    if not tally.drafted and tally.longest >= _ROUNDS_NEED_TOKENS and not reported.get("may_find_nothing"):
        return (
            f"{requested['type']} is on, but nothing was drafted in answers of up to {tally.longest} tokens.",
            _REPORT,
        )
    return None
