"""Start one llama-server: a port, the process, the wait until it is healthy."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import httpx

from benchctl.engines.base import Launch
from benchctl.engines.common.process import EngineProcess, free_port
from benchctl.engines.common.start_up import StartUp
from benchctl.engines.llama_cpp.causes import launch_cause
from benchctl.engines.llama_cpp.command import slots_of
from benchctl.engines.llama_cpp.dialect import Flags
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.engines.llama_cpp.speculation import asked_of
from benchctl.errors import EngineError
from benchctl.recipes.schema import EngineSpec

_LISTENING = re.compile(rb"listening on https?://[^\s/]*?:(\d+)|HTTP server is listening, hostname: \S+, port: (\d+)")
_POLL_S = 0.03
_PORT_ATTEMPTS = 5


def start_server(launch: Launch, log_path: Path, spec: EngineSpec, flags: Flags) -> LlamaServer:
    """Start llama-server and wait until it is healthy. Raises EngineError (`launch`, `health`)."""
    # Current builds choose a free port themselves and log it; for older ones one is looked for beforehand.
    chooses = flags.dialect == "current"
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        port = 0 if chooses else free_port()
        try:
            return _started(launch, log_path, spec, flags, port)
        except EngineError as error:
            taken = error.kind == "launch" and "couldn't bind" in "\n".join(error.log_tail)
            if not taken or attempt == _PORT_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _started(launch: Launch, log_path: Path, spec: EngineSpec, flags: Flags, port: int) -> LlamaServer:
    argv = [str(port) if word == "{port}" else word for word in launch.argv]
    process = EngineProcess(argv, launch.env, log_path)
    client: httpx.Client | None = None
    try:
        start_up = StartUp(process, log_path, spec.health_timeout_s, launch_cause, _POLL_S)
        told = _listening_port(start_up)
        # No proxy, no netrc: the caller's network settings have nothing to do with loopback.
        client = httpx.Client(
            base_url=f"http://127.0.0.1:{told}",
            trust_env=False,
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # Never used, and quicker than loading certificates.
            limits=httpx.Limits(max_connections=None),  # What waits for a connection here would be timed.
        )
        _wait_healthy(start_up, client)
    except BaseException:
        if client is not None:
            client.close()
        process.stop(grace_s=2.0)
        raise
    asked = asked_of(argv, flags)
    model = argv[argv.index("-m") + 1]
    slots, overlapping = slots_of(argv), launch.overlapping
    return LlamaServer(process, log_path, client, spec, asked, model, slots=slots, overlapping=overlapping)


def _listening_port(start_up: StartUp) -> int:
    """Wait for the log to tell on which port this very process listens."""
    while True:
        found = _LISTENING.search(start_up.log_path.read_bytes())
        if found:
            return int(found[1] or found[2])
        start_up.wait_a_moment()


def _wait_healthy(start_up: StartUp, client: httpx.Client) -> None:
    while True:
        try:
            if client.get("/health", timeout=5.0).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass  # Not yet, or never: the next lines find out.
        start_up.wait_a_moment()
