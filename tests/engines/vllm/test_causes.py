"""The root cause out of a log whose last line is seldom it; the lines are vLLM 0.32's own."""

from __future__ import annotations

import pytest

from benchctl.engines.vllm.server import launch_cause

WORKER = "(Worker pid=12074) ERROR 11-21 17:12:08 [multiproc_executor.py:852] "
CORE = "(EngineCore pid=11951) ERROR 11-21 17:12:08 [core.py:1512] "
API = "(APIServer pid=11403) "


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["usage: vllm serve", "vllm: error: unrecognized arguments: --foo 4"], "no option --foo 4"),
        (
            [
                f"{CORE}ValueError: Available memory on node 0 (20.75/23.54 GiB) on kv cache allocation is less than "
                "requested memory for kv (100.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE",
                f"{API}RuntimeError: Engine core initialization failed. See root cause above.",
            ],
            "too little memory",
        ),
        ([f"{API}OSError: [Errno 98] Address already in use"], "Address already in use"),
        (
            [f"{WORKER}ValueError: Unsupported CPU attention configuration: head_dim=16"],
            "does not know this model's shape (head_dim=16)",
        ),
        (
            [
                f"{API}pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig",
                f"{API}foo",
                f"{API}  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=1, input_type=int]",
                f"{API}    For further information visit https://errors.pydantic.dev/2.14/v/unexpected_keyword_argument",
            ],
            "refuses its configuration: SpeculativeConfig",
        ),
        (
            [
                f"{CORE}Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",
                f"{CORE}RuntimeError: cancelled",
            ],
            "worker process of vLLM died (exit code -9)",
        ),
        ([f"{CORE}RuntimeError: cancelled"], "worker process of vLLM died; its log does not show why"),
        ([f"{WORKER}TypeError: 'function' object is not subscriptable"], "TypeError: 'function' object"),
    ],
)
def test_the_cause_is_found(lines: list[str], message: str) -> None:
    result = launch_cause(["INFO: starting", *lines])
    assert result is not None
    assert message in result[0]
    assert result[1]


def test_a_log_without_a_known_cause() -> None:
    assert launch_cause(["INFO: starting", f"{API}RuntimeError: Engine core initialization failed. See above"]) is None
