"""What an engine reported, as fields of records and of the manifest. What it does not report is absent, never 0."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from benchctl.data.cell import AttestationRecord, CellError, MemoryRecord
from benchctl.data.counts import steps_contradiction
from benchctl.data.identity import home_relative
from benchctl.data.record import sha256_text, sha256_tokens
from benchctl.engines.base import Attestation, Completion, LaunchedProcess, Server
from benchctl.engines.common.log import name_log
from benchctl.errors import EngineError
from benchctl.machine.monitor import EngineMemory, read_engine_memory

Value = TypeVar("Value", int, float | None)


def now() -> str:
    """Return the time in ISO 8601 with its offset, to the millisecond."""
    return datetime.now(UTC).astimezone().isoformat(timespec="milliseconds")


_AS_REPORTED = (
    *("n_predicted", "prompt_tokens", "cached_tokens", "finish_reason", "ttft_s", "decode_s", "e2e_s"),
    *("engine_prompt_s", "engine_decode_s", "burst_gaps_s", "text_events"),
)
"""Numbers of an answer that are a record's under the same name."""


def measured_fields(done: Completion) -> dict[str, object]:
    """Return the numbers of an answer, by the record's keys."""
    ledger, steps = done.ledger, done.n_predicted - 1
    read = done.prompt_tokens - (done.cached_tokens or 0)
    at_least = done.least_after_first
    return {
        **{name: getattr(done, name) for name in _AS_REPORTED},
        "tok_per_sec": steps / done.engine_decode_s if steps > 0 and done.engine_decode_s else None,
        "client_tok_per_sec": done.decode_rate,
        "client_tok_per_sec_least": at_least / done.decode_s
        if at_least and at_least < done.n_predicted and done.decode_s > 0
        else None,
        "prompt_per_sec": read / done.engine_prompt_s if done.engine_prompt_s and read > 0 else None,
        "draft_n": ledger.drafted,
        "draft_n_accepted": ledger.accepted,
        "verified_n": ledger.verified,
        "rounds": ledger.rounds,
        "plain_steps": ledger.plain_steps,
        "drafted_by_position": _listed(ledger.drafted_by_position),
        "accepted_by_position": _listed(ledger.accepted_by_position),
        "accepted_by_length": _listed(ledger.accepted_by_length),
        "target_steps": _target_steps(done),
        "phase_s": None if done.phase_s is None else dict(done.phase_s),
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
        "logprobs": _listed(done.logprobs),
        "reasoning_tokens": None if done.thought is None else done.thought[0],
        "reasoning_s": None if done.thought is None else done.thought[1],
        "reasoning_chars": done.reasoned,
    }


def attestation_record(attestation: Attestation, log: Path) -> AttestationRecord:
    """Return an attestation as the manifest keeps it; `log`: the engine's."""
    return AttestationRecord(
        state=attestation.state,
        evidence=[home_relative(line) for line in attestation.evidence],
        reason=attestation.reason,
        remedy=_advice(attestation.remedy, log),
    )


def read_memory(server: Server) -> EngineMemory:
    """Return the memory of a server's processes now; nothing of an endpoint that benchctl did not start."""
    return read_engine_memory(server.pid) if isinstance(server, LaunchedProcess) else EngineMemory()


def memory_record(server: Server | None, earlier: EngineMemory) -> MemoryRecord | None:
    """Return the memory of a server, by a reading now and an earlier reading; `None` where it is not reported."""
    if not isinstance(server, LaunchedProcess):
        return None
    memory, reported = read_engine_memory(server.pid).at_least(earlier), server.memory_report()
    return MemoryRecord(**asdict(memory), **asdict(reported))


def require_attested(attestation: Attestation, server: Server) -> None:
    """Raise EngineError (`attestation`) when an engine did not run as the recipe specifies."""
    if attestation.state == "failed":
        raise EngineError(
            attestation.reason or "The engine did not run as the recipe specifies.",
            kind="attestation",
            fix=attestation.remedy,
            log_tail=server.log_tail(),
        )


def cell_error(error: EngineError, log: Path) -> CellError:
    """Return why a cell failed, as the manifest keeps it; `log`: the engine's."""
    return CellError(
        kind=error.kind,
        message=home_relative(error.what),
        remedy=_advice(error.fix, log),
        log_tail=[home_relative(line) for line in error.log_tail],
    )


def _advice(fix: str | None, log: Path) -> str | None:
    return fix and home_relative(name_log(fix, log))


def _target_steps(done: Completion) -> list[list[int]] | None:
    """Return the steps of the target; `None` where they contradict the counters or the tokens that came."""
    ledger = done.ledger
    if ledger.target_steps is None or steps_contradiction(
        ledger.target_steps,
        tokens=done.n_predicted,
        drafted=ledger.drafted,
        accepted=ledger.accepted,
        rounds=ledger.rounds,
    ):
        return None
    return [list(step) for step in ledger.target_steps]


def _listed(values: tuple[Value, ...] | None) -> list[Value] | None:
    return None if values is None else list(values)
