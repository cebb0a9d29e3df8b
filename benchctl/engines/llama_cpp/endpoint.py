"""A llama-server that runs already, recognised behind its OpenAI-compatible routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchctl.engines.base import Ledger
from benchctl.engines.common.endpoint import Pages, Reading, Recognised, ServerFamily, word
from benchctl.engines.common.metrics import Counters
from benchctl.engines.llama_cpp.ledger import make_ledger


def _metrics(pages: Pages) -> Reading | None:
    return pages.metrics("llamacpp", "llamacpp:tokens_predicted_total")


def _recognise(pages: Pages) -> Recognised | None:
    props = pages.object("/props")
    if "build_info" not in props and "total_slots" not in props:
        return None
    version, slots = word(props.get("build_info")), pages.json("/slots")
    told = [slot.get("speculative") for slot in slots if isinstance(slot, dict)] if isinstance(slots, list) else []
    known = [one for one in told if isinstance(one, bool)]
    reading = _metrics(pages)
    evidence = (
        f"GET /props: build {version}, total_slots = {word(props.get('total_slots'))}",
        f"GET /slots: speculative = {', '.join(str(one).lower() for one in known) or 'not told'}",
        str(reading or Reading(Counters(), None)),
    )
    return Recognised(version, any(known) if known else None, reading, evidence)


def _ledger(seen: Recognised, told: Mapping[str, Any], before: Counters, after: Counters) -> Ledger:
    timings = told.get("timings")
    return make_ledger(before, after, timings if isinstance(timings, dict) else {}, speculating=bool(seen.speculates))


FAMILY = ServerFamily(_recognise, _ledger, _metrics)
