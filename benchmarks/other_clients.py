"""What a streamed token costs the clients that others wrote: `vllm bench serve`, guidellm and aiperf.

Each is its own program with a start of many seconds, so that it is run twice, with few and with many requests: the
processor time that the further requests took, over their tokens, is what one token costs. Every child process counts.
"""

from __future__ import annotations

import resource
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchctl.errors import UsageError

FEW, MANY = 200, 1400
"""Requests of the two runs."""
LIMIT_S = 600

Command = Callable[[str, str, str, int, int, int], list[str]]
"""(program, URL, tokenizer folder, tokens of an answer, in flight, requests) -> the command."""


def _vllm(program: str, url: str, tokenizer: str, tokens: int, width: int, requests: int) -> list[str]:
    return [
        *(program, "bench", "serve", "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions"),
        *("--model", "bench", "--tokenizer", tokenizer, "--dataset-name", "random", "--random-input-len", "8"),
        *("--random-output-len", str(tokens), "--max-concurrency", str(width), "--num-prompts", str(requests)),
    ]


def _guidellm(program: str, url: str, tokenizer: str, tokens: int, width: int, requests: int) -> list[str]:
    return [
        *(program, "run", "--disable-console", "--profile", f"kind=concurrent,streams={width}"),
        *("--backend", f"kind=openai_http,target={url},model=bench,request_format=/v1/completions"),
        *("--constraint", f"kind=max_requests,count={requests}", "--tokenizer", f"kind=hf_auto,model={tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=8,output_tokens={tokens}"),
    ]


def _aiperf(program: str, url: str, tokenizer: str, tokens: int, width: int, requests: int) -> list[str]:
    return [
        *(program, "profile", "--model", "bench", "--url", url, "--endpoint-type", "completions", "--streaming"),
        *("--concurrency", str(width), "--request-count", str(requests), "--tokenizer", tokenizer),
        *("--isl", "8", "--osl", str(tokens), "--ui", "none"),
    ]


CLIENTS: dict[str, Command] = {"vllm": _vllm, "guidellm": _guidellm, "aiperf": _aiperf}


def capacity(name: str, program: str, url: str, tokenizer: Path, tokens: int, width: int) -> dict[str, float]:
    """Return streamed tokens a second of the client's processor time, all its processes together.

    Raises UsageError when the client fails, with the end of what it printed.
    """
    spent = {}
    for requests in (FEW, MANY):
        command = CLIENTS[name](program, url, str(tokenizer), tokens, width, requests)
        before = _children_s()
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=LIMIT_S, check=False)
        if done.returncode:
            output = (done.stdout + done.stderr)[-1000:]
            raise UsageError(f"{name} ended with exit code {done.returncode}: {output}", where=" ".join(command))
        spent[requests] = _children_s() - before
    a_token = (spent[MANY] - spent[FEW]) / ((MANY - FEW) * tokens)
    return {"tokens_per_second_of_client_cpu": 1 / a_token, "start_cpu_s": spent[FEW] - FEW * tokens * a_token}


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
