"""The record: one finished or failed request, one JSON line.

The first eleven keys are those of the published PLaMo 2 study, so that its files load unchanged; everything that
benchctl adds is optional on reading. What an engine does not tell is `None`, never 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1
"""The version that this benchctl writes; files of a newer one are refused."""

Phase = Literal["warmup", "measure"]
FinishReason = Literal["stop", "length"]


def sha256_text(text: str) -> str:
    """Return the SHA-256 (64 hex digits) of the UTF-8 bytes of `text`; lone surrogates are kept as they are."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def sha256_tokens(token_ids: Sequence[int]) -> str:
    """Return the SHA-256 (64 hex digits) of token ids written as decimal numbers with a comma between them."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode("ascii")).hexdigest()


class RecordError(BaseModel):
    """Why a request has no usable answer. `kind` is a word of `benchctl.errors.EngineError.kind`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    kind: str
    message: str


class Record(BaseModel):
    """One request as it was measured. Times are seconds, rates tokens per second."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    # The eleven keys of the study, in its order.
    label: str
    task: str
    prompt_idx: int = Field(ge=0)
    rep: int = Field(ge=0)
    tok_per_sec: float | None = None
    """Decode rate by the engine's own clock: (n_predicted - 1) / engine_decode_s; the first token is prefill's."""
    n_predicted: int = Field(default=0, ge=0)
    draft_n: int | None = Field(default=None, ge=0)
    draft_n_accepted: int | None = Field(default=None, ge=0)
    prompt_per_sec: float | None = None
    content_sha: str | None = None
    content: str | None = None

    # What benchctl adds.
    schema_version: int = Field(default=0, alias="schema")
    """0 marks a record of the study, which carries no version."""
    run: str | None = None
    block: int = Field(default=0, ge=0)
    order: int | None = None
    """Position of the arm within its block, from 0; of an interleaved run, of its turn at this prompt."""
    attempt: int = 0
    """Which process of this cell answered: `attempt` of the manifest's cell; rises when a run is resumed."""
    phase: Phase = "measure"
    prompt_sha: str | None = None
    """SHA-256 of the rendered prompt text, as the model saw it."""
    prompt_tokens: int | None = None
    token_ids: list[int] | None = None
    token_sha: str | None = None
    token_gap: str | None = None
    """Why `token_ids` is absent although the request succeeded; `None` when the ids are complete."""
    finish_reason: FinishReason | None = None
    ttft_s: float | None = None
    """From sending the request to the first token at the client."""
    decode_s: float | None = None
    """From the first to the last token at the client."""
    e2e_s: float | None = None
    """From sending the request to the last byte of the answer at the client."""
    client_tok_per_sec: float | None = None
    """Decode rate by the client's clock: (n_predicted - 1) / decode_s, counting tokens, not chunks."""
    engine_prompt_s: float | None = None
    engine_decode_s: float | None = None
    rounds: int | None = None
    """Verify steps of the target that had at least one draft token."""
    drafted_by_position: list[int] | None = None
    accepted_by_position: list[int] | None = None
    """How many rounds accepted the draft token at position 0, 1, … (unconditional counts)."""
    error: RecordError | None = None
    started_at: str | None = None
    """ISO 8601 with offset."""

    @property
    def key(self) -> tuple[int, str, str, int]:
        """What identifies a measurement: (block, label, task, prompt_idx); a study's repetitions are its blocks."""
        return (self.block if self.schema_version else self.rep, self.label, self.task, self.prompt_idx)

    def to_line(self) -> str:
        """Return the record as one line of ASCII JSON without the newline; lone surrogates survive as escapes."""
        return json.dumps(self.model_dump(by_alias=True), ensure_ascii=True, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str | bytes) -> Record:
        """Parse one line. Raises ValueError (pydantic's ValidationError is one) for anything that is no record."""
        return cls.model_validate(json.loads(line))
