"""A llama-server process and the few requests that checking a model needs."""

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIXED = ["-np", "1", "-c", "2048", "-t", "1", "-tb", "1", "--cache-ram", "0", "--no-webui"]


@dataclass(frozen=True)
class Server:
    """The address of a running server."""

    port: int

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a JSON request and return the JSON answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return dict(json.load(answer))

    def complete(self, prompt: str | list[int], tokens: int, **settings: object) -> dict[str, Any]:
        """Continue a prompt greedily, without any cache between requests."""
        return self.post(
            "/completion",
            {
                "prompt": prompt,
                "n_predict": tokens,
                "temperature": 0,
                "top_k": 1,
                "seed": 1,
                "cache_prompt": False,
                "return_tokens": True,
                **settings,
            },
        )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def running(binary: Path, model: Path, *extra: str, log: Path) -> Iterator[Server]:
    """Start the server on a model, wait until it is ready, stop it at the end."""
    port = _free_port()
    command = [str(binary), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), *FIXED, *extra]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}; see {log}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                    break
            except OSError:
                time.sleep(0.05)
        yield Server(port)
    finally:
        process.terminate()
        process.wait()
