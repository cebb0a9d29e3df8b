"""What an endpoint shows of itself: which server it is, what it serves, and whether it speculates.

Nothing is concluded from silence: an endpoint behind a gateway shows none of this, and `speculates` is then `None`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from benchctl.engines.common.http import HttpClient
from benchctl.engines.common.metrics import Counters, read_counters, read_total
from benchctl.engines.openai.address import Address
from benchctl.engines.sglang.ledger import drafts_are_counted
from benchctl.errors import EngineError
from benchctl.text import one_line

Family = Literal["llama.cpp", "vllm", "sglang"]
_GENERATED = {"llama.cpp": "llamacpp:tokens_predicted_total", "vllm": "vllm:generation_tokens_total"}
_PREFIX = {"llama.cpp": "llamacpp", "vllm": "vllm"}


@dataclass(frozen=True)
class Reading:
    """The counters of `/metrics` at one moment; all requests of the endpoint are in them, other people's too."""

    counters: Counters
    generated: int | None
    """Tokens generated so far."""


@dataclass(frozen=True)
class Shown:
    """One look at an endpoint."""

    family: Family | None
    version: str | None
    models: tuple[str, ...] | None
    """What `/v1/models` lists; `None` where there is no such list."""
    speculates: bool | None
    """What the server says of its own setting; `None` where it says nothing."""
    metrics: Reading | None
    """`None` where `/metrics` tells nothing of this server."""
    evidence: tuple[str, ...]
    drafts_counted: bool = True
    """Whether what it says of drafted tokens is a count; see `sglang/ledger.py`."""


def look(client: HttpClient, address: Address) -> Shown:
    """Look at every place where a server may show something. Raises EngineError when nobody answers or lets us in."""
    models = _models(client, address)
    evidence = [f"GET /v1/models: {'not told' if models is None else ', '.join(models) or 'none'}"]
    props, info = _object(client, f"{address.root}/props"), _object(client, f"{address.root}/server_info")
    if "build_info" in props or "total_slots" in props:
        return _llama_server(client, address, models, props, evidence)
    if "speculative_algorithm" in info or "internal_states" in info:
        return _sglang(models, info, evidence)
    reading = read_metrics(client, address, "vllm")
    version = _object(client, f"{address.root}/version").get("version")
    if reading is not None:
        return _vllm(models, version, reading, evidence)
    evidence.append("/props, /slots, /server_info and /metrics: not told")
    return Shown(None, _word(version), models, None, None, tuple(evidence))


def read_metrics(client: HttpClient, address: Address, family: Family) -> Reading | None:
    """Read the counters of a server of that family; `None` where it shows none."""
    name = _GENERATED.get(family)
    if name is None:
        return None
    response = client.get(f"{address.root}/metrics")
    if response.status_code != 200:
        return None
    generated = read_total(response.text, name)
    counters = read_counters(response.text, _PREFIX[family])
    return None if generated is None and counters == Counters() else Reading(counters, generated)


def _llama_server(
    client: HttpClient, address: Address, models: tuple[str, ...] | None, props: dict[str, Any], evidence: list[str]
) -> Shown:
    version = _word(props.get("build_info"))
    evidence.append(f"GET /props: build {version}, total_slots = {_word(props.get('total_slots'))}")
    slots = client.get_json(f"{address.root}/slots")
    told = [slot.get("speculative") for slot in slots if isinstance(slot, dict)] if isinstance(slots, list) else []
    known = [one for one in told if isinstance(one, bool)]
    evidence.append(f"GET /slots: speculative = {', '.join(str(one).lower() for one in known) or 'not told'}")
    reading = read_metrics(client, address, "llama.cpp")
    evidence.append(_counted(reading))
    return Shown("llama.cpp", version, models, any(known) if known else None, reading, tuple(evidence))


def _vllm(models: tuple[str, ...] | None, version: object, reading: Reading, evidence: list[str]) -> Shown:
    # vLLM has the counters of speculation exactly where speculation is on.
    speculates = reading.counters.rounds is not None or reading.counters.drafted is not None
    evidence += [f"GET /version: vLLM {_word(version)}", _counted(reading)]
    return Shown("vllm", _word(version), models, speculates, reading, tuple(evidence))


def _sglang(models: tuple[str, ...] | None, info: dict[str, Any], evidence: list[str]) -> Shown:
    algorithm, version = info.get("speculative_algorithm"), _word(info.get("version"))
    known = "speculative_algorithm" in info
    states = info.get("internal_states")
    each = states if isinstance(states, list) else []
    lengths = [state.get("avg_spec_accept_length") for state in each if isinstance(state, dict)]
    evidence.append(f"GET /server_info: SGLang {version}, speculative_algorithm = {_word(algorithm) if known else '?'}")
    evidence.append(f"GET /server_info: avg_spec_accept_length = {', '.join(map(str, lengths)) or 'not told'}"[:200])
    counted = drafts_are_counted(info)
    if algorithm and not counted:
        evidence.append("SGLang tells only how many tokens it would draft at most: drafted tokens are not told")
    return Shown("sglang", version, models, bool(algorithm) if known else None, None, tuple(evidence), counted)


def _counted(reading: Reading | None) -> str:
    if reading is None or reading.counters == Counters():
        return "GET /metrics: no counters of speculation"
    counted = reading.counters
    return f"GET /metrics: {counted.rounds} rounds, {counted.drafted} drafted, {counted.accepted} accepted so far"


def _models(client: HttpClient, address: Address) -> tuple[str, ...] | None:
    response = client.get(f"{address.api}/models")
    if response.status_code in (401, 403):
        raise EngineError(
            f"The endpoint lets nobody in without a key: HTTP {response.status_code}.",
            kind="launch",
            where=address.api,
            fix="Name the environment variable that holds a valid key: engine.api_key_env.",
        )
    if 300 <= response.status_code < 400:
        elsewhere = client.redact(response.headers.get("location", "not told"))
        raise EngineError(
            f"The endpoint redirects (HTTP {response.status_code}), and no redirect is followed.",
            kind="launch",
            where=address.api,
            fix=f"Write the address itself: {one_line(elsewhere, 200)}",
        )
    try:
        listed = response.json()["data"] if response.status_code == 200 else None
        return None if listed is None else tuple(client.redact(str(model["id"])) for model in _each(listed))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _each(listed: object) -> Iterable[Any]:
    if not isinstance(listed, list):
        raise TypeError("a list of models")
    return listed


def _object(client: HttpClient, url: str) -> dict[str, Any]:
    """Return what an endpoint tells at `url`, strings without the key."""
    found = client.get_json(url)
    if not isinstance(found, dict):
        return {}
    return {name: client.redact(value) if isinstance(value, str) else value for name, value in found.items()}


def _word(value: object) -> str | None:
    return None if value is None else one_line(str(value), 120)
