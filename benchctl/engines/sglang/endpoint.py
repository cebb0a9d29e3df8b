"""An SGLang that runs already, recognised by its `/server_info`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchctl.engines.base import Ledger
from benchctl.engines.common.endpoint import (
    EndpointTarget,
    Pages,
    Recognised,
    ServerFamily,
    TokenizingTarget,
    short_line,
)
from benchctl.engines.common.metrics import Counters
from benchctl.engines.sglang.attest import drafts_are_counted, make_ledger
from benchctl.engines.sglang.score import SglangScorer


def _recognise(pages: Pages) -> Recognised | None:
    info = pages.object("/server_info")
    if "speculative_algorithm" not in info and "internal_states" not in info:
        return None
    algorithm, version = info.get("speculative_algorithm"), short_line(info.get("version"))
    known, states = "speculative_algorithm" in info, info.get("internal_states")
    each = states if isinstance(states, list) else []
    lengths = [state.get("avg_spec_accept_length") for state in each[:64] if isinstance(state, dict)]
    evidence = [
        f"GET /server_info: SGLang {version}, speculative_algorithm = {short_line(algorithm) if known else '?'}",
        f"GET /server_info: avg_spec_accept_length = {', '.join(map(str, lengths)) or 'not reported'}"[:200],
    ]
    counted = drafts_are_counted(info)
    if algorithm and not counted:
        evidence.append("SGLang reports only the maximum number of draft tokens: drafted tokens are not reported")
    return Recognised(version, bool(algorithm) if known else None, None, tuple(evidence), counted)


def _ledger(server: Recognised, extra: Mapping[str, Any], before: Counters, after: Counters) -> Ledger:
    del before, after  # it has no counters of speculation
    extension = extra.get("sglext")
    details = extension.get("spec_tokens_details") if isinstance(extension, dict) else None
    details = details[0] if isinstance(details, list) and details else details
    return make_ledger(details, counted=server.drafts_counted) if isinstance(details, dict) else Ledger()


def _scorer(target: EndpointTarget) -> SglangScorer:
    return SglangScorer(TokenizingTarget.of(target), (), context=target.context, timeout_s=target.timeout_s)


FAMILY = ServerFamily(_recognise, _ledger, scorer=_scorer)
