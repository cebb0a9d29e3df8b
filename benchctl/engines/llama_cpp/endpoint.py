"""A llama-server that runs already, recognised behind its OpenAI-compatible routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchctl.engines.base import Ledger, Rendered
from benchctl.engines.common.endpoint import (
    EndpointTarget,
    Pages,
    Reading,
    Recognised,
    ServerFamily,
    as_sent,
    short_line,
)
from benchctl.engines.common.metrics import Counters
from benchctl.engines.common.stream import protocol_error
from benchctl.engines.llama_cpp.attest import rendered, speculating
from benchctl.engines.llama_cpp.ledger import make_ledger
from benchctl.engines.llama_cpp.score import LlamaScorer
from benchctl.prompts.suite import Prompt


def _metrics(pages: Pages) -> Reading | None:
    return pages.metrics("llamacpp", "llamacpp:tokens_predicted_total")


def _recognise(pages: Pages) -> Recognised | None:
    props = pages.object("/props")
    if "build_info" not in props and "total_slots" not in props:
        return None
    version, slots = short_line(props.get("build_info")), pages.json("/slots")
    known = [state for state in speculating(slots) if state is not None] if isinstance(slots, list) else []
    reading = _metrics(pages)
    evidence = (
        f"GET /props: build {version}, total_slots = {short_line(props.get('total_slots'))}",
        f"GET /slots: speculative = {rendered(known)}",
        str(reading or Reading(Counters(), None)),
    )
    return Recognised(version, any(known) if known else None, reading, evidence)


def _ledger(server: Recognised, extra: Mapping[str, Any], before: Counters, after: Counters) -> Ledger:
    timings = extra.get("timings")
    return make_ledger(before, after, timings if isinstance(timings, dict) else {}, speculating=bool(server.speculates))


class _Served(EndpointTarget):
    """A llama-server that serves the target."""

    def render(self, prompt: Prompt) -> Rendered:
        """Apply its chat template and tokenize; the text is what is sent."""
        text = prompt.prompt
        if text is None:
            text = self.http.post("/apply-template", self.chat(prompt)).get("prompt")
        if not isinstance(text, str):
            raise protocol_error("The endpoint did not return the prompt's text.")
        return Rendered(as_sent(prompt), self.tokenize(text, special=True))

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Return the ids of `text`."""
        body = {"content": text, "add_special": special, "parse_special": special}
        return self.token_ids(self.http.post("/tokenize", body))

    def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request for logits."""
        return self.http.post("/completion", body, timeout_s=self.timeout_s)


def _scorer(target: EndpointTarget) -> LlamaScorer:
    return LlamaScorer(_Served.of(target), ())


FAMILY = ServerFamily(_recognise, _ledger, _metrics, _scorer)
