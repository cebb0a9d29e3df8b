"""Drafts are read by the answer's shape; fixtures are values of the projects' own documents and threads."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.engines.base import Ledger
from benchctl.engines.common.drafts import LLAMA_CPP, Drafts, contradictions, read_drafts

DEPTHS = [
    {"depth": 1, "draft_n": 20, "draft_n_accepted": 10},
    {"depth": 2, "draft_n": 10, "draft_n_accepted": 2},
]
"""ik_llama.cpp."""
MLX_VLM = {"draft_kind": "mtp", "draft_rounds": 30, "draft_n": 90, "draft_n_accepted": 81}
"""mlx-vlm, pull request 1788: of 111 tokens."""
VLLM = {
    "acceptance_histogram": [39, 1, 0, 3],
    "num_spec_steps": 43,
    "num_accepted_draft_tokens": 10,
    "num_draft_tokens": 129,
    "num_spec_tokens": 3,
}
"""vLLM 48915, without its rates."""
SGLANG = {
    "spec_verify_ct": 5,
    "spec_num_correct_drafts": 7,
    "spec_num_proposed_drafts": 15,
    "spec_accept_length": 2.4,
    "spec_correct_drafts_histogram": [1, 2, 1, 1],
}
"""SGLang's tokenizer manager; what it calls proposed is the most that there can have been."""
TENSORRT_LLM = {
    "acceptance_rate": 0.5,
    "total_accepted_draft_tokens": 30,
    "total_draft_tokens": 60,
    "num_spec_steps": 20,
    "acceptance_histogram": [8, 0, 6, 6],
    "num_spec_tokens": 3,
}
"""TensorRT-LLM's choice, as aiperf 1433 shows it."""
LM_STUDIO = {
    "total_draft_tokens_count": 492,
    "accepted_draft_tokens_count": 176,
    "rejected_draft_tokens_count": 316,
}
"""LM Studio, /api/v0."""


@pytest.mark.parametrize(
    ("extra", "usage", "shape", "ledger"),
    [
        ({"timings": {"draft_n": 12, "draft_n_accepted": 7}}, {}, LLAMA_CPP, Ledger(drafted=12, accepted=7)),
        (
            {"timings": {"draft_n": 30, "draft_n_accepted": 12, "draft_by_depth": DEPTHS}},
            {},
            "`timings` (ik_llama.cpp's shape)",
            Ledger(30, 12, 20, drafted_by_position=(20, 10), accepted_by_position=(10, 2)),
        ),
        ({"timings": MLX_VLM}, {}, "`timings` (mlx-vlm's shape)", Ledger(drafted=90, accepted=81, rounds=30)),
        (
            {"metrics": {"speculative_decoding": VLLM}},
            {},
            "`metrics.speculative_decoding` (vLLM's shape)",
            Ledger(drafted=129, accepted=10, rounds=43, accepted_by_position=(4, 3, 3)),
        ),
        (
            {"speculative_decoding": TENSORRT_LLM, "avg_decoded_tokens_per_iter": 2.5},
            {},
            "`choices[].speculative_decoding` (TensorRT-LLM's shape)",
            Ledger(drafted=60, accepted=30, rounds=20, accepted_by_position=(12, 12, 6)),
        ),
        (
            {"speculative_decoding": TENSORRT_LLM | {"acceptance_histogram": [8, 6, 6]}},
            {},
            "`choices[].speculative_decoding` (TensorRT-LLM's shape)",
            Ledger(drafted=60, accepted=30, rounds=20),
        ),
        ({}, LM_STUDIO, "`usage` (LM Studio's shape)", Ledger(drafted=492, accepted=176)),
        ({"stats": LM_STUDIO}, {}, "`stats` (LM Studio's shape)", Ledger(drafted=492, accepted=176)),
        (
            {"meta_info": SGLANG},
            {},
            "`meta_info` (SGLang's shape)",
            Ledger(accepted=7, rounds=5, accepted_by_position=(4, 2, 1)),
        ),
    ],
)
def test_a_shape_is_read_whoever_sent_it(
    extra: dict[str, Any], usage: dict[str, Any], shape: str, ledger: Ledger
) -> None:
    drafts = read_drafts(extra, usage)
    assert drafts is not None
    assert (drafts.shape, drafts.ledger) == (shape, ledger)


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"timings": {"predicted_n": 4}},
        {"timings": dict.fromkeys(MLX_VLM)},
        {"timings": {"draft_n": "many"}},
        {"timings": [1]},
        {"metrics": {"speculative_decoding": None}},
        {"avg_decoded_tokens_per_iter": 0.5},
        {"avg_decoded_tokens_per_iter": True},
        {"meta_info": {"completion_tokens": 4, "spec_verify_ct": 0}},
        {"stats": {"tokens_per_second": 30.0}},
    ],
)
def test_the_rest_is_not_reported_and_no_count_is_invented(extra: dict[str, Any]) -> None:
    assert read_drafts(extra, {"completion_tokens": 4}) is None


@pytest.mark.parametrize(
    "extra",
    [
        {"avg_decoded_tokens_per_iter": 2.3},
        {"meta_info": {"spec_accept_length": 2.3}},
        {"metrics": {"speculative_decoding": {"mean_acceptance_length": 2.3, "draft_acceptance_rate": 0.4}}},
    ],
)
def test_a_mean_alone_is_an_acceptance_length_and_no_count(extra: dict[str, Any]) -> None:
    drafts = read_drafts(extra, {})
    assert drafts is not None
    assert (drafts.length, drafts.ledger) == (2.3, Ledger())


def test_timings_without_drafts_mean_none_only_where_the_server_told_drafts_before() -> None:
    silent = {"timings": {"predicted_n": 4}}
    assert read_drafts(silent, {}, silent_is_none=True) == Drafts(LLAMA_CPP, Ledger(drafted=0, accepted=0))
    assert read_drafts({"timings": dict.fromkeys(MLX_VLM)}, {}, silent_is_none=True) is None
    assert read_drafts({}, {}, silent_is_none=True) is None


@pytest.mark.parametrize("rows", [[{"depth": 0, "draft_n": 1, "draft_n_accepted": 1}], [1], "x", [DEPTHS[0]] * 2, []])
def test_unusable_rows_by_depth_leave_the_totals(rows: object) -> None:
    drafts = read_drafts({"timings": {"draft_n": 3, "draft_n_accepted": 1, "draft_by_depth": rows}}, {})
    assert drafts is not None
    assert drafts.ledger == Ledger(drafted=3, accepted=1)


@pytest.mark.parametrize(
    ("extra", "tokens", "message"),
    [
        (
            {"timings": {"draft_n": 3, "draft_n_accepted": 4}},
            9,
            "more draft tokens were accepted than drafted (9 tokens, 4 of 3 draft tokens",
        ),
        (
            {"timings": {"draft_n": 31, "draft_n_accepted": 12, "draft_by_depth": DEPTHS}},
            40,
            "the drafts by position do not add up to the total",
        ),
        (
            {"metrics": {"speculative_decoding": VLLM}},
            50,
            "rounds and accepted tokens make more tokens than came out (50 tokens, 10 of",
        ),
        ({"metrics": {"speculative_decoding": VLLM}}, 51, None),
        ({"metrics": {"speculative_decoding": VLLM}}, 54, None),
        ({"timings": MLX_VLM}, 111, None),
        ({"timings": MLX_VLM}, 90, None),
    ],
)
def test_contradictions_are_named_but_for_tokens_past_the_end(
    extra: dict[str, Any], tokens: int, message: str | None
) -> None:
    drafts = read_drafts(extra, {})
    assert drafts is not None
    sentences = contradictions(drafts.ledger, tokens)
    assert len(sentences) == (message is not None)
    assert (message or "") in "".join(sentences)
