from __future__ import annotations

import pytest

from benchctl.engines.llama_cpp.causes import launch_cause


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("error loading model: unknown model architecture: 'zeta9'", "architecture zeta9"),
        ("failed to load draft model, '/nonexistent.gguf'", "draft model /nonexistent.gguf"),
        ("ggml_backend_cpu_buffer: failed to allocate buffer of size 1146880000000", "out of memory"),
        ("failed to initialize the context: n_seq_max must be <= 256", "has 256 slots at most"),
        ('error while handling argument "--spec-draft-n-max": stoi', "value of --spec-draft-n-max"),
        ("couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18111", "port is taken"),
        ("E context type MTP requested but model doesn't contain MTP layers", "draft-mtp needs a target"),
        ('GGML_ASSERT(target_layer_ids_n > 0 && "DFlash model has no target_layer_ids") failed', "of their own kind"),
        (
            "common.cpp:1539: failed to remove sequence 0 with p0=31, p1=-1",
            "could not remove a rejected draft token",
        ),
        ("GGML_ASSERT(ctx->x > 0) failed", "assertion of its own: ctx->x > 0"),
    ],
)
def test_a_log_line_becomes_a_sentence_and_a_fix(line: str, message: str) -> None:
    cause = launch_cause(["0.00 I starting", line, "exiting due to model loading error"])
    assert cause is not None
    assert message in cause[0]
    assert cause[1]


def test_an_unknown_end_has_no_cause() -> None:
    assert launch_cause(["0.00 I starting", "{0} {weird}"]) is None


def test_braces_in_a_log_line_are_only_text() -> None:
    cause = launch_cause(["error loading model: {0}{x}"])
    assert cause is not None
    assert "{0}{x}" in cause[0]
