"""Settings that are lossy by design, read from command lines and environments of every engine kind."""

from __future__ import annotations

import json

import pytest

from benchctl.recipes.adapters import batch_invariance, lossy_settings, registered

SYNTHETIC = "synthetic acceptance"
THRESHOLD, SIMULATED = "acceptance threshold", "synthetic acceptance"


@pytest.mark.parametrize(
    ("kind", "argv", "env", "expected"),
    [
        ("llama.cpp", "llama-server --spec-type draft-simple --spec-synth-len 3", {}, [SYNTHETIC]),
        ("llama.cpp", "llama-server --spec-synth-rates=0.9,0.5", {}, [SYNTHETIC]),
        ("llama.cpp", "llama-server --spec_synth_len 2 --spec-synth-rates 1,1", {}, [SYNTHETIC]),
        ("llama.cpp", "llama-server", {"LLAMA_ARG_SPEC_SYNTH_LEN": "3"}, [SYNTHETIC]),
        ("llama.cpp", "llama-server --spec-type draft-simple --spec-draft-p-min 0.5", {"LLAMA_ARG_CTX": "1"}, []),
        ("llama.cpp", "llama-server -m my--spec-synth-len.gguf", {}, []),
        ("vllm", '--speculative-config {"method":"ngram","rejection_sample_method":"synthetic"}', {}, [SYNTHETIC]),
        ("vllm", '-sc={"synthetic_acceptance_rates":[0.5]}', {}, [SYNTHETIC]),
        ("vllm", "--speculative-config.rejection_sample_method synthetic", {}, [SYNTHETIC]),
        ("vllm", '--speculative-config {"rejection_sample_method":"hopeful"}', {}, ["acceptance rule hopeful"]),
        ("vllm", '--speculative-config {"method":"ngram","rejection_sample_method":"block"}', {}, []),
        ("vllm", "--speculative-config {nonsense", {}, []),
        ("sglang", "--speculative-accept-threshold-single 0.9", {}, [THRESHOLD]),
        ("sglang", "--speculative-accept-threshold-acc=0.5 --speculative-accept-threshold-single=0.4", {}, [THRESHOLD]),
        ("sglang", "--speculative-accept-threshold-single 1.0", {}, []),
        ("sglang", "--speculative-algorithm NGRAM", {"SGLANG_SIMULATE_ACC_LEN": "3"}, [SIMULATED]),
        ("openai", "--spec-synth-len 3", {}, []),
    ],
)
def test_what_is_lossy_is_recognised(kind: str, argv: str, env: dict[str, str], expected: list[str]) -> None:
    assert lossy_settings(kind, argv.split(" "), env) == expected


def test_a_promise_of_equal_numbers_in_any_batch_is_recognised() -> None:
    for value, promised in (("1", True), ("0", False), ("", False), ("yes", False)):
        setting = batch_invariance("vllm", ["vllm", "serve"], {"VLLM_BATCH_INVARIANT": value})
        assert setting == ("VLLM_BATCH_INVARIANT=1" if promised else None)
    assert batch_invariance("llama.cpp", [], {"VLLM_BATCH_INVARIANT": "1"}) is None


def test_what_writes_a_synthetic_acceptance_is_recognised_as_one() -> None:
    rules = {kind: adapter.synthetic for kind, adapter in registered().adapters.items() if adapter.synthetic}
    assert set(rules) == {"llama.cpp", "sglang", "vllm"}  # SGLang's stands in a variable: tests/engines/sglang
    for kind in ("llama.cpp", "vllm"):
        rule = rules[kind]
        assert rule is not None
        args, options = rule([0.5, 0.25])
        argv = [*args, *(["--speculative-config", json.dumps(options)] if options else [])]
        assert "0.5" in " ".join(argv)
        assert lossy_settings(kind, argv, {}) == [SYNTHETIC], kind
