"""Starts llama-server, llama.cpp's or ik_llama.cpp's, and waits until it is healthy."""

from __future__ import annotations

import re
from pathlib import Path

from benchctl.engines.base import Launch
from benchctl.engines.common.launched_server import StartUp
from benchctl.engines.common.process import EngineProcess, free_port, make_access
from benchctl.engines.llama_cpp.causes import launch_cause
from benchctl.engines.llama_cpp.ik_server import IkServer
from benchctl.engines.llama_cpp.probe import Flags
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.recipes.engine_spec import CachingEngineSpec

# With what follows the port: of a line that is just being written a digit may be missing.
_LISTENING = re.compile(rb"(?i:listening)[^\n]{1,400}?(?:://[^\s/]*:|\bport\W{1,5})(\d{1,5})\D")
_POLL_S = 0.03


def start_server(launch: Launch, log_path: Path, spec: CachingEngineSpec, flags: Flags) -> LlamaServer:
    """Start llama-server and wait until it is healthy. Raises EngineError (`launch`, `health`)."""
    # On a port, current builds choose a free one themselves and log it; for older builds it is chosen beforehand.
    port = 0 if flags.dialect == "current" else free_port()
    host = flags.get("--host")  # a build says in its help that it takes the path of a Unix socket for its address
    access = make_access(by_socket=host is not None and "unix socket" in host.description.lower())
    argv = launch.command(port)
    if access.socket_path is not None and "--host" in argv:
        argv[argv.index("--host") + 1] = str(access.socket_path)
    if flags.dialect == "ik":  # it reads no variable of a key
        file = access.folder / "key"
        file.touch(mode=0o600)
        file.write_text(f"{access.key}\n")
        argv += ["--api-key-file", str(file)]
    process = EngineProcess(argv, {**launch.env, "LLAMA_API_KEY": access.key}, log_path, access)
    try:
        start_up, listening = StartUp(process, spec.health_timeout_s, launch_cause, _POLL_S), None
        # On a port, wait for the log line with that on which this very process listens.
        while not access.socket_path and not (listening := _LISTENING.search(log_path.read_bytes())):
            start_up.wait_a_moment()
        url = access.url(int(listening[1]) if listening else None)
        server_class = IkServer if flags.dialect == "ik" else LlamaServer
        server = server_class(process, url, spec, argv, flags, overlapping=launch.overlapping)
        server.wait_until_healthy(start_up)
    except BaseException:
        process.stop(grace_s=2.0)
        raise
    return server
