"""What an endpoint reports of itself: which server it is, what it serves, and whether it speculates.

Nothing is concluded from what is absent: an endpoint behind a gateway may report none of this, and `speculates` is then
`None`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchctl.engines.base import Ledger
from benchctl.engines.common.completion_stream import StreamedAnswer
from benchctl.engines.common.endpoint import Pages, Reading, Recognised, ServerFamily, short_line
from benchctl.engines.common.http import HttpClient
from benchctl.engines.common.metrics import Counters
from benchctl.engines.common.values import count_in, seconds_in
from benchctl.engines.openai.address import Address
from benchctl.errors import EngineError
from benchctl.offers import load
from benchctl.recipes.adapters import registered
from benchctl.text import one_line

_MOST_MODELS = 10_000
_LONGEST_NAME = 4096
"""Some servers name a model by its folder."""
_SHOWN = 20


@dataclass(frozen=True)
class Endpoint:
    """One inspection of an endpoint."""

    family: str | None
    """The kind of engine that it is, by the adapter that recognised it."""
    reader: ServerFamily | None
    server: Recognised
    models: tuple[str, ...] | None
    """What `/v1/models` lists; `None` where there is no such list."""
    evidence: tuple[str, ...]
    context: int | None = None
    """The longest sequence of the first model that it lists, in tokens, where that is reported."""

    @property
    def version(self) -> str | None:
        """The version that it reports."""
        return self.server.version

    @property
    def speculates(self) -> bool | None:
        """Whether it reports that speculation is on; `None` where it reports neither."""
        return self.server.speculates

    @property
    def metrics(self) -> Reading | None:
        """`None` where `/metrics` has none of its counters."""
        return self.server.metrics


def discover(client: HttpClient, address: Address) -> Endpoint:
    """Inspect every path at which a server may report something. Raises EngineError when there is no answer or no
    access."""
    models, context = _models(client, address)
    listed = f"GET /v1/models: {'not reported' if models is None else shown(models) or 'none'}"
    pages = Pages(client, address.root)
    for kind, reader in families():
        server = reader.recognise(pages)
        if server is not None:
            return Endpoint(kind, reader, server, models, (listed, *server.evidence), context)
    silent = "/props, /slots, /server_info and /metrics: not reported"
    nobody = Recognised(short_line(pages.object("/version").get("version")), None, None, ())
    return Endpoint(None, None, nobody, models, (listed, silent), context)


def families() -> Iterator[tuple[str, ServerFamily]]:
    """Yield every registered kind of engine that can be recognised behind an endpoint, and how."""
    for kind, adapter in registered().adapters.items():
        if adapter.endpoint is not None:
            reader: Any = load(adapter.endpoint)
            yield kind, reader


def read_metrics(client: HttpClient, address: Address, endpoint: Endpoint) -> Reading | None:
    """Read the counters of a server; `None` where it has none."""
    return None if endpoint.reader is None else endpoint.reader.metrics(Pages(client, address.root))


def _models(client: HttpClient, address: Address) -> tuple[tuple[str, ...] | None, int | None]:
    """Return the names that are served, and how long a sequence of the first may be."""
    response = client.get(f"{address.api}/models")
    if response.status_code in (401, 403):
        raise EngineError(
            f"The endpoint requires a valid API key: HTTP {response.status_code}.",
            kind="launch",
            where=address.api,
            fix="Name the environment variable that holds a valid key: engine.api_key_env.",
        )
    if 300 <= response.status_code < 400:
        elsewhere = client.redact(response.headers.get("location", "not reported"))
        raise EngineError(
            f"The endpoint redirects (HTTP {response.status_code}), and no redirect is followed.",
            kind="launch",
            where=address.api,
            fix=f"Write the address itself: {one_line(elsewhere, 200)}",
        )
    try:
        listed = response.json()["data"] if response.status_code == 200 else None
        if listed is None:
            return None, None
        names = tuple(client.redact(_name(model["id"])) for model in _each(listed))
        return names, count_in(listed[0].get("max_model_len"), 2**31) if listed else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None, None


def _each(listed: object) -> Iterable[Any]:
    if not isinstance(listed, list) or len(listed) > _MOST_MODELS:
        raise TypeError("a list of models")
    return listed


def _name(name: object) -> str:
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise TypeError("a name")
    return name


def shown(names: Sequence[str]) -> str:
    """Return the first names of what is served as one line."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(one_line(name, 80) for name in names[:_SHOWN]) + more


def endpoint_ledger(
    endpoint: Endpoint, answer: StreamedAnswer, before: Reading | None, after: Reading | None, n_predicted: int
) -> Ledger:
    """Return the ledger of one answer.

    `before` and `after` are readings of the shared counters, `None` where there are none or several requests are in
    flight. They count only where they moved by exactly this answer's tokens: else other clients were served as well.
    """
    if endpoint.reader is None:
        return Ledger()
    ours = alone(before, after, n_predicted)
    earlier = before.counters if ours and before else Counters()
    later = after.counters if ours and after else Counters()
    return endpoint.reader.ledger(endpoint.server, answer.extra, earlier, later)


def alone(before: Reading | None, after: Reading | None, n_predicted: int) -> bool:
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
