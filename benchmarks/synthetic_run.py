"""Runs whose truth is known: records made from simulated times, laid out as benchctl stores them, for its own analysis.

Nothing here is measured. What differs between simulations is who takes how long: they give answers with their times,
and `analyse(synthetic_run(...))` says of them what it would say of a real run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchctl.data.cell import AttestationRecord, Cell
from benchctl.data.manifest import ArmIdentity, EngineIdentity, Manifest, ModelIdentity, PromptIdentity
from benchctl.data.record import Record, sha256_text
from benchctl.data.store import RunData

BASELINE = "baseline"
TASKS = ("chat", "code", "translation")
_RUN = "20261122-000000-0000"
_TIME = "2026-11-22T00:00:00+00:00"
_DEPTH = 4


@dataclass(frozen=True)
class Answer:
    """One request: who answered, and how long it took. Times in seconds."""

    arm: str
    block: int
    prompt: int
    tokens: int
    """That came out, the first one included."""
    decode_s: float
    """From the first token to the last."""
    sent_s: float | None = None
    """From the start of the cell."""
    ttft_s: float = 0.1


def baseline_arm(name: str = BASELINE, **condition: object) -> ArmIdentity:
    """Return an arm of the target alone; `condition` are `of`, `concurrency` and `rate`."""
    return ArmIdentity.model_validate(
        {"name": name, "baseline": True, "speculation": None, "argv": [], "env": [], **condition}
    )


def speculating_arm(name: str, **condition: object) -> ArmIdentity:
    """Return an arm that drafts."""
    speculation = {"type": "draft-simple", "max": _DEPTH}
    return ArmIdentity.model_validate(
        {"name": name, "baseline": False, "speculation": speculation, "argv": [], "env": [], **condition}
    )


def synthetic_run(arms: Sequence[ArmIdentity], answers: Iterable[Answer], *, blocks: int, prompts: int) -> RunData:
    """Return a finished run of these answers, which are all sound. Prompts take turns among `TASKS`."""
    drafts = {arm.name for arm in arms if arm.speculation}
    records = [_record(answer, drafts=answer.arm in drafts) for answer in answers]
    return RunData(folder=Path("synthetic"), manifest=_manifest(arms, blocks, prompts), records=records, damaged=[])


def task_of(prompt: int) -> str:
    """Return the task that a prompt belongs to."""
    return TASKS[prompt % len(TASKS)]


@cache
def _text(prompt: int) -> tuple[str, str]:
    text = f"the answer to prompt {prompt}"
    return text, sha256_text(text)


def _record(answer: Answer, *, drafts: bool) -> Record:
    text, digest = _text(answer.prompt)
    rate = (answer.tokens - 1) / answer.decode_s
    rounds = (answer.tokens - 1) // 3
    return Record(
        label=answer.arm,
        task=task_of(answer.prompt),
        prompt_idx=answer.prompt,
        rep=answer.block,
        block=answer.block,
        schema_version=1,
        run=_RUN,
        tok_per_sec=rate,
        client_tok_per_sec=rate,
        n_predicted=answer.tokens,
        content=text,
        content_sha=digest,
        prompt_sha=digest,
        finish_reason="length",
        sent_s=answer.sent_s,
        late_s=None if answer.sent_s is None else 0.0,
        ttft_s=answer.ttft_s,
        decode_s=answer.decode_s,
        e2e_s=answer.ttft_s + answer.decode_s,
        draft_n=_DEPTH * rounds if drafts else None,
        draft_n_accepted=2 * rounds if drafts else None,
        rounds=rounds if drafts else None,
    )


def _manifest(arms: Sequence[ArmIdentity], blocks: int, prompts: int) -> Manifest:
    model = ModelIdentity(source="none", path=None, files=[])
    engine = EngineIdentity(
        kind="llama.cpp", binary=None, found_in="nowhere", version=None, build=None, commit=None, speculation_types=[]
    )
    return Manifest(
        run=_RUN,
        benchctl_version="0",
        status="finished",
        created_at=_TIME,
        recipe_name="synthetic",
        recipe={},
        recipe_sha256="0" * 64,
        workload_sha256="0" * 64,
        baseline=next(arm.name for arm in arms if arm.baseline),
        blocks=blocks,
        engine=engine,
        target=model,
        draft=model,
        arms=list(arms),
        prompts=[PromptIdentity(task=task_of(number), prompt_idx=number, sha256="0" * 64) for number in range(prompts)],
        cells=[
            Cell(
                block=block,
                arm=arm.name,
                order=order,
                status="finished",
                started_at=_TIME,
                wall_s=1.0,
                log="none",
                attestation=AttestationRecord(state="active" if arm.speculation else "off", evidence=["simulated"]),
            )
            for block in range(blocks)
            for order, arm in enumerate(arms)
        ],
    )
