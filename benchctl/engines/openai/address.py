"""Where an endpoint is, and the key that opens it. The key is read from the environment and never printed."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from benchctl.errors import UsageError

_HIDDEN = "[API key]"
_TELLING = 8
"""Shorter keys are placeholders such as `none`, and would occur in ordinary text."""
_REACH_S = 3.0
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
            with socket.create_connection((parts.hostname or "", port), timeout=_REACH_S):
                return True
        except OSError:
            return False


def parse_address(url: str | None, where: str) -> Address:
    """Split a recipe's URL, with or without `/v1` at its end. Raises UsageError, without showing a password."""
    if not url:
        raise UsageError("An endpoint needs an address.", where=where, fix="Such as `url: http://127.0.0.1:8000/v1`.")
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise UsageError("This is no URL.", where=where, fix="Such as `http://127.0.0.1:8000/v1`.") from None
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "The URL has a user or password in it, and a recipe is recorded as it is.",
            where=where,
            fix="Name the environment variable that holds the API key: engine.api_key_env.",
        )
    if parts.query or parts.fragment:
        raise UsageError(
            "The URL has a query or fragment, which benchctl's requests would not carry.",
            where=where,
            fix="Write scheme, host, port and path; a key belongs into the environment: engine.api_key_env.",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("Expected http:// or https:// and a host.", where=where)
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
    """Where it came from."""

    @property
    def is_no_secret(self) -> bool:
        """Whether there is one that is too short to be taken out of texts: allowed on loopback alone."""
        return 0 < len(self.value) < _TELLING

    @property
    def headers(self) -> dict[str, str]:
        """What a request carries."""
        return {"Authorization": f"Bearer {self.value}"} if self.value else {}

    def redact(self, text: str) -> str:
        """Return `text` without the key."""
        return text.replace(self.value, _HIDDEN) if len(self.value) >= _TELLING else text


def check_key(key: ApiKey, address: Address) -> None:
    """Refuse a key that is too short to be taken out of texts, unless the endpoint is on this machine. UsageError.

    On loopback such a word (`EMPTY`, `ollama`) is no secret.
    """
    if key.is_no_secret and not _on_loopback(urlsplit(address.root).hostname or ""):
        raise UsageError(
            f"The key in {key.variable} has fewer than {_TELLING} characters: it could not be taken out of logs.",
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
    if not value:
        raise UsageError(
            f"The environment variable {variable} holds no API key.",
            where="engine.api_key_env",
            fix=f"Set it before the run: export {variable}=…",
        )
    if not _SENDABLE.fullmatch(value):
        raise UsageError(
            f"What the environment variable {variable} holds cannot be sent as a key.",
            where="engine.api_key_env",
            fix="A key is printable ASCII without spaces.",
        )
    return ApiKey(value, variable)
