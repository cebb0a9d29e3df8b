"""An endpoint's address, its key, and what it reports: its server, its models, whether it speculates.

The key is read from the environment and never printed. Nothing is concluded from what is absent: an endpoint behind a
gateway may report none of this: `speculates` is then `None`, and the attestation of a cell `unverified`.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from benchctl.data.cell import UNCHECKED_ACCEPTANCE
from benchctl.engines.base import Attestation, AttestationState, Ledger
from benchctl.engines.common.completion_stream import StreamedAnswer
from benchctl.engines.common.drafts import Drafts, Tally, counted_since
from benchctl.engines.common.endpoint import MetricsReading, Pages, Recognised, ServerFamily, short_line
from benchctl.engines.common.http import HttpClient
from benchctl.engines.common.wire import count_in, seconds_in
from benchctl.errors import EngineError, UsageError
from benchctl.recipes.adapters import registered
from benchctl.text import one_line, plural

_MAX_LISTED = 20


class _Model(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(max_length=4096)]
    """Some servers name a model by its folder."""
    max_model_len: Any = None


class _Models(msgspec.Struct):
    data: Annotated[list[_Model], msgspec.Meta(max_length=10_000)]


@dataclass(frozen=True)
class Endpoint(Recognised):
    """An inspection of an endpoint: what its server reports, and what it serves."""

    family: str | None = None
    """The kind of engine that it is, by the adapter that recognised it."""
    reader: ServerFamily | None = None
    models: tuple[str, ...] | None = None
    """The names that `/v1/models` lists; `None` where there is no such list."""
    context: int | None = None
    """The longest sequence of the first model that it lists, in tokens, where that is reported."""


def discover(client: HttpClient, address: Address) -> Endpoint:
    """Inspect every path at which a server may report something. Raises EngineError when there is no answer or no
    access."""
    models, context = _models(client, address)
    listed = f"GET /v1/models: {'not reported' if models is None else list_names(models) or 'none'}"
    pages = Pages(client, address.root)
    for kind, adapter in registered().adapters.items():
        reader: ServerFamily | None = resolve_name(adapter.endpoint) if adapter.endpoint else None
        if reader is not None and (server := reader.recognise(pages)) is not None:
            reported = {**vars(server), "evidence": (listed, *server.evidence)}
            return Endpoint(**reported, family=kind, reader=reader, models=models, context=context)
    reading = pages.any_metrics()
    silent = "/props, /slots, /server_info and /metrics: not reported"
    evidence = silent if reading is None else f"{reading}; /props, /slots and /server_info: not reported"
    version = short_line(pages.object("/version").get("version"))
    return Endpoint(version, None, reading, (listed, evidence), models=models, context=context)


def _models(client: HttpClient, address: Address) -> tuple[tuple[str, ...] | None, int | None]:
    """Return the names that are served, and how long a sequence of the first may be."""
    response = client.get(f"{address.api}/models")
    if response.status_code in (401, 403) or 300 <= response.status_code < 400:
        refused = client.refused(response)
        raise EngineError(refused.what, kind="launch", where=address.api, fix=refused.fix)
    if response.status_code != 200:
        return None, None
    try:
        listed = msgspec.convert(response.json(), _Models).data
    except ValueError:
        return None, None
    names = tuple(client.redact(model.id) for model in listed)
    return names, count_in(listed[0].max_model_len, 2**31) if listed else None


def list_names(names: Sequence[str]) -> str:
    """Return the first names of what is served as a line."""
    rest_of_list = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(one_line(name, 80) for name in names[:_MAX_LISTED]) + rest_of_list


def endpoint_ledger(
    endpoint: Endpoint, answer: StreamedAnswer, earlier: Ledger, later: Ledger, drafts: Drafts | None
) -> Ledger:
    """Return the ledger of an answer: of a server that is recognised as its adapter reads it, with what the shape shows
    beside that; of another the drafts that its shape shows, else those that its counters show.

    `earlier`, `later`: the counters before and after it, empty where other requests were in flight.
    """
    by_shape = Ledger() if drafts is None else drafts.ledger
    if endpoint.reader is None:
        return counted_since(earlier, later) if by_shape == Ledger() else by_shape
    ledger = endpoint.reader.ledger(endpoint, answer.extra, earlier, later)
    return replace(ledger, **{name: count for name, count in vars(by_shape).items() if getattr(ledger, name) is None})


def only_ours(before: MetricsReading | None, after: MetricsReading | None, n_predicted: int) -> bool:
    """Whether no other client's tokens were generated between two readings."""
    if before is None or after is None or before.generated is None or after.generated is None:
        return False
    return after.generated - before.generated == n_predicted


def engine_times(extra: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the server's own seconds of prefill and of decoding, from llama-server's timings or vLLM's metrics."""
    timings, metrics = extra.get("timings"), extra.get("metrics")
    if isinstance(timings, dict):
        return seconds_in(timings.get("prompt_ms")), seconds_in(timings.get("predicted_ms"))
    if isinstance(metrics, dict):
        return seconds_in(metrics.get("time_to_first_token_ms")), seconds_in(metrics.get("generation_time_ms"))
    return None, None


_PLACEHOLDER = "[API key]"
_SHORTEST_SECRET = 8
"""Shorter keys are placeholders such as `none`, and would occur in ordinary text."""
_CONNECT_TIMEOUT_S = 3.0
_SENDABLE = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True)
class Address:
    """An endpoint's address: `api` is where `/completions` is, `root` where the server's own endpoints are."""

    root: str
    api: str

    def takes_connections(self) -> bool:
        """Whether a connection is accepted there; a proxy between is not used."""
        parts = urlsplit(self.root)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            with socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_TIMEOUT_S):
                return True
        except OSError:
            return False


def parse_address(url: str | None, where: str) -> Address:
    """Split a recipe's URL, with or without `/v1` at its end. Raises UsageError, without showing a password."""
    parts, port = urlsplit(""), None
    with suppress(ValueError):
        split = urlsplit((url or "").strip())
        port = split.port
        # A recipe is recorded as it is, and benchctl's requests carry no query.
        if split.username is None and split.password is None and not (split.query or split.fragment):
            parts = split
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            "An endpoint's address has http:// or https://, a host, maybe a port and a path, and nothing else.",
            where=where,
            fix="Such as `http://127.0.0.1:8000/v1`; name the variable that holds a key: engine.api_key_env.",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/")
    origin = f"{parts.scheme}://{host}{'' if port is None else f':{port}'}"
    if re.search(r"/v\d+$", path):
        return Address(origin + path.rpartition("/")[0], origin + path)
    return Address(origin + path, f"{origin}{path}/v1")


@dataclass(frozen=True)
class ApiKey:
    """A key, or none. `redact` takes it out of any text."""

    value: str = field(default="", repr=False)
    variable: str = ""
    """The environment variable that holds it."""

    @property
    def is_no_secret(self) -> bool:
        """Whether it is a key that is too short to be taken out of texts: allowed on loopback alone."""
        return 0 < len(self.value) < _SHORTEST_SECRET

    @property
    def headers(self) -> dict[str, str]:
        """The headers that a request carries."""
        return {"Authorization": f"Bearer {self.value}"} if self.value else {}

    def redact(self, text: str) -> str:
        """Return `text` without the key, in whatever case a server sends it back."""
        if len(self.value) < _SHORTEST_SECRET:
            return text
        return re.sub(re.escape(self.value), _PLACEHOLDER, text, flags=re.IGNORECASE)


def check_key(key: ApiKey, address: Address) -> None:
    """Refuse a key too short to be taken out of texts, but for loopback, where such a word (`ollama`) is no secret."""
    if key.is_no_secret and not _on_loopback(urlsplit(address.root).hostname or ""):
        raise UsageError(
            f"The key in {key.variable} has fewer than {_SHORTEST_SECRET} characters, so logs may show it.",
            where="engine.api_key_env",
            fix="Use a longer key, or leave api_key_env out where the endpoint needs none.",
        )


def _on_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def read_key(variable: str | None, environment: Mapping[str, str]) -> ApiKey:
    """Read the key from the environment variable that a recipe names. Raises UsageError."""
    if variable is None:
        return ApiKey()
    value = environment.get(variable, "").strip()
    if not _SENDABLE.fullmatch(value):
        raise UsageError(
            f"The environment variable {variable} holds no API key: printable ASCII without spaces.",
            where="engine.api_key_env",
            fix=f"Set it before the run: export {variable}=…",
        )
    return ApiKey(value, variable)


_REMEDY = "Check how the endpoint was launched, and write the recipe accordingly."
_DEPLOYED = "Run it again while nothing is deployed."


@dataclass
class EndpointObserved:
    """The observations of a cell so far."""

    speculation: str | None
    """The speculation that the recipe states for this endpoint; `None`: none."""
    tally: Tally = field(default_factory=Tally)
    shared: int = 0
    """Answers during which the endpoint also generated tokens for other clients."""
    cached: int = 0
    """Answers whose prompt was partly taken from a cache."""
    waits: int = 0
    """Requests that the busy endpoint refused, and that were sent again after the wait that it asked for."""
    shapes: dict[str, None] = field(default_factory=dict)
    """The shapes of drafts in answers, as `benchctl.engines.common.drafts` names them, in order of appearance."""
    contradictions: list[str] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    """Acceptance lengths of answers that report no counts of drafted and accepted tokens."""


def attest(
    observed: EndpointObserved, first: Endpoint, last: Endpoint, drafted: int | None, *, only_chat: bool
) -> Attestation:
    """Return the attestation of a cell, from what its endpoint reported first and last; `drafted`: in all answers."""
    drafted, answers = observed.tally.most_drafted(drafted), observed.tally.answers
    counted = "not reported" if drafted is None else drafted
    evidence = [*last.evidence, f"draft tokens of our answers: {counted}"]
    shapes = ", ".join(observed.shapes)
    evidence.append(f"drafts read from {shapes}" if shapes else "drafts in answers: not reported")
    if lengths := observed.lengths:
        range_of_lengths = f"{min(lengths):.2f} to {max(lengths):.2f} tokens a step in {len(lengths)} answers"
        evidence.append(f"acceptance length, as the answers state it: {range_of_lengths}; no counts")
    if count := len(observed.contradictions):
        evidence.append(f"contradiction ({count} in all): {observed.contradictions[0]}")
    elif observed.tally.accepted and observed.tally.rounds is None:
        evidence.append(f"{UNCHECKED_ACCEPTANCE}: no verify rounds are counted that could confirm the accepted tokens")
    if observed.shared:
        evidence.append(f"{observed.shared} of {answers} answers shared the endpoint with other requests")
    if observed.cached:
        evidence.append(f"{observed.cached} of {answers} prompts were partly taken from a cache, which shortens TTFT")
    if observed.waits:
        requests = f"{observed.waits} {plural(observed.waits, 'request was', 'requests were')}"
        evidence.append(f"{requests} refused as busy and sent again later; no figure has the wait")
    if only_chat:
        evidence.append("no /v1/completions: raw prompts were sent as a user message")
    if observed.speculation is not None:
        evidence.append(f"type and depth: not reported; the recipe says {observed.speculation}")
    state, reason, remedy = _state(observed, first, last, drafted)
    return Attestation(state, tuple(evidence), reason, remedy)


def _state(
    observed: EndpointObserved, first: Endpoint, last: Endpoint, drafted: int | None
) -> tuple[AttestationState, str | None, str | None]:
    """Return the state of a cell, with its reason and remedy."""
    if (first.family, first.version) != (last.family, last.version):
        was, now = (f"{server.family} {server.version}" for server in (first, last))
        return "failed", f"A different server answers than at the start: {now}, not {was}.", _DEPLOYED
    count, says = drafted or observed.tally.accepted, f"the recipe says {observed.speculation}"
    speculated = bool(count) or max(observed.lengths, default=1.0) > 1.0
    if observed.speculation is None:
        if speculated or last.speculates:
            message = f"drafted {count} tokens for it" if count else "states an acceptance length above 1"
            message = message if speculated else "reports that it is on"
            return "failed", f"The arm requests no speculation, but the endpoint {message}.", _REMEDY
        if last.speculates is False:
            return "off", None, None
        return "unverified", "The endpoint does not report whether it speculated; none was requested.", None
    if speculated:
        return "active", None, None
    if last.speculates is False:
        message = f"The recipe says {observed.speculation}, but the endpoint reports that it does not speculate."
        return "failed", message, _REMEDY
    if last.speculates is None:
        return "unverified", f"The endpoint does not report whether it speculated; {says}.", None
    if drafted == 0 or not observed.tally.answers:
        return "idle", None, None
    return "unverified", f"The endpoint reports that it has speculation on, but not whether it drafted; {says}.", None
