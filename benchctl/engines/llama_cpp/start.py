"""Start one llama-server: a socket or a port, the process, the wait until it is healthy."""

from __future__ import annotations

import re
from pathlib import Path

from benchctl.engines.base import Launch
from benchctl.engines.common.access import make_access
from benchctl.engines.common.launched_server import StartUp
from benchctl.engines.common.process import EngineProcess, free_port
from benchctl.engines.llama_cpp.causes import launch_cause
from benchctl.engines.llama_cpp.command import slots_of
from benchctl.engines.llama_cpp.dialect import Flags
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.engines.llama_cpp.speculation import requested_of
from benchctl.errors import EngineError
from benchctl.recipes.engine_spec import LaunchedEngineSpec

_LISTENING = re.compile(
    rb"listening on https?://[^\s/]*?:(\d{1,5})\b|HTTP server is listening, hostname: \S+, port: (\d{1,5})\b"
)
_POLL_S = 0.03
_PORT_ATTEMPTS = 5


def start_server(launch: Launch, log_path: Path, spec: LaunchedEngineSpec, flags: Flags) -> LlamaServer:
    """Start llama-server and wait until it is healthy. Raises EngineError (`launch`, `health`)."""
    # On a port, current builds choose a free one themselves and log it; for older ones a free one is chosen beforehand.
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


def _started(launch: Launch, log_path: Path, spec: LaunchedEngineSpec, flags: Flags, port: int) -> LlamaServer:
    access = make_access(by_socket=listens_on_sockets(flags))
    argv = [str(port) if argument == "{port}" else argument for argument in launch.argv]
    if access.socket_path is not None and "--host" in argv:
        argv[argv.index("--host") + 1] = str(access.socket_path)
    process = EngineProcess(argv, {**launch.env, "LLAMA_API_KEY": access.key}, log_path, scratch=access.folder)
    server: LlamaServer | None = None
    try:
        start_up = StartUp(process, log_path, spec.health_timeout_s, launch_cause, _POLL_S)
        server = LlamaServer(
            process,
            log_path,
            access.url(None if access.socket_path else _listening_port(start_up)),
            spec,
            requested_of(argv, flags),
            model=argv[argv.index("-m") + 1],
            slots=slots_of(argv),
            overlapping=launch.overlapping,
            access=access,
        )
        server.wait_until_healthy(start_up)
    except BaseException:
        if server is not None:
            server.http.close()
        process.stop(grace_s=2.0)
        raise
    return server


def listens_on_sockets(flags: Flags) -> bool:
    """Whether this build takes the path of a Unix socket for its address, by its help for the option."""
    host = flags.get("--host")
    return host is not None and "unix socket" in host.description.lower()


def _listening_port(start_up: StartUp) -> int:
    """Wait for the log line with the port on which this very process listens."""
    while True:
        found = _LISTENING.search(start_up.log_path.read_bytes())
        if found:
            return int(found[1] or found[2])
        start_up.wait_a_moment()
