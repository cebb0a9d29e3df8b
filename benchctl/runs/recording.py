"""An engine's answer in the words of a record. What the engine does not tell is absent, never 0."""

from __future__ import annotations

from datetime import UTC, datetime

from benchctl.engines.base import Completion
from benchctl.records import sha256_text, sha256_tokens


def now() -> str:
    """Return the time in ISO 8601 with its offset, to the millisecond."""
    return datetime.now(UTC).astimezone().isoformat(timespec="milliseconds")


def measured_fields(done: Completion) -> dict[str, object]:
    """Return the numbers of an answer, by the record's keys."""
    ledger = done.ledger
    steps = done.n_predicted - 1
    return {
        "n_predicted": done.n_predicted,
        "tok_per_sec": steps / done.engine_decode_s if steps > 0 and done.engine_decode_s else None,
        "client_tok_per_sec": steps / done.decode_s if steps > 0 and done.decode_s > 0 else None,
        "prompt_per_sec": done.prompt_tokens / done.engine_prompt_s if done.engine_prompt_s else None,
        "prompt_tokens": done.prompt_tokens,
        "draft_n": ledger.drafted,
        "draft_n_accepted": ledger.accepted,
        "rounds": ledger.rounds,
        "drafted_by_position": _listed(ledger.drafted_by_position),
        "accepted_by_position": _listed(ledger.accepted_by_position),
        "finish_reason": done.finish_reason,
        "ttft_s": done.ttft_s,
        "decode_s": done.decode_s,
        "e2e_s": done.e2e_s,
        "engine_prompt_s": done.engine_prompt_s,
        "engine_decode_s": done.engine_decode_s,
    }


def answer_fields(done: Completion) -> dict[str, object]:
    """Return the text and tokens of an answer with their hashes, by the record's keys."""
    ids = done.token_ids
    return {
        "content": done.text,
        "content_sha": sha256_text(done.text),
        "token_ids": _listed(ids),
        "token_sha": None if ids is None else sha256_tokens(ids),
        "token_gap": done.token_gap,
    }


def _listed(values: tuple[int, ...] | None) -> list[int] | None:
    return None if values is None else list(values)
