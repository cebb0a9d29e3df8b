"""The record: a finished or failed request, a JSON line.

The first eleven keys are those of the published PLaMo 2 study, so that its files load unchanged; everything that
benchctl adds is optional on reading. What an engine does not report is `None`, never 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

SCHEMA_VERSION = 1
"""The version that this benchctl writes; newer records are refused. There is no older version: 0 is the study's."""

Phase = Literal["warmup", "measure"]
FinishReason = Literal["stop", "length"]
Count = Annotated[int, msgspec.Meta(ge=0)]


def sha256_text(text: str) -> str:
    """Return the SHA-256 (64 hex digits) of the UTF-8 bytes of `text`; lone surrogates are kept as they are."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def sha256_tokens(token_ids: Sequence[int]) -> str:
    """Return the SHA-256 (64 hex digits) of token ids written as decimal numbers with a comma between them."""
    return hashlib.sha256(msgspec.json.encode(token_ids)[1:-1]).hexdigest()  # of "[1,2,3]", written at once


class RecordError(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a request has no usable answer. `kind` is a word of `benchctl.errors.EngineError.kind`, or `conflict`."""

    kind: str
    message: str


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A request as it was measured. Times are seconds, rates tokens per second.

    A struct and not a pydantic model, because a run may have 100,000: it is read in a third of the time, takes a third
    of the memory, and (`gc=False`) the garbage collector never visits it. Reading checks types and ranges; calling
    `Record(...)` does not.
    """

    # The eleven keys of the study, in its order.
    label: str
    task: str
    prompt_idx: Count
    rep: Count
    tok_per_sec: float | None = None
    """Decode rate by the engine's own clock: (n_predicted - 1) / engine_decode_s; the first token is prefill's."""
    n_predicted: Count = 0
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None
    prompt_per_sec: float | None = None
    """Prompt tokens that were read (not taken from a cache) / engine_prompt_s."""
    content_sha: str | None = None
    content: str | None = None

    # What benchctl adds.
    schema_version: int = msgspec.field(default=0, name="schema")
    """0 marks a record of the study, which carries no version."""
    run: str | None = None
    block: Count = 0
    order: int | None = None
    """Position of the arm within its block, from 0; of an interleaved run, of its turn at this prompt."""
    attempt: int = 0
    """Which process of this cell answered: `attempt` of the manifest's cell; rises when a run is resumed."""
    phase: Phase = "measure"
    prompt_sha: str | None = None
    """SHA-256 of the rendered prompt text, and of what its request has beside it (a schema of the answer)."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """How many of them were not read, since an earlier request left them in the cache."""
    token_ids: list[int] | None = None
    token_sha: str | None = None
    token_gap: str | None = None
    """Why `token_ids` is absent although the request succeeded; `None` when the ids are complete."""
    logprobs: list[float | None] | None = None
    """Where the request asked for them, the log probabilities in nats that came with the tokens, in order; `None` for a
    token that was listed without a likeliest one beside it: the server computed none."""
    finish_reason: FinishReason | None = None
    reasoning_tokens: Count | None = None
    """Where its text has a `</think>`, or its server sends reasoning apart: the tokens up to there, to the round."""
    reasoning_s: float | None = None
    """From the first token to the last of these at the client."""
    reasoning_chars: Count | None = None
    """How many characters at the beginning of `content` the server sent apart, as `reasoning_content`."""
    sent_s: float | None = None
    """From the start of the cell's measuring to when the request was sent, or in an open loop should have been."""
    late_s: float | None = None
    """How much later than that it was really sent; 0 in a closed loop. In an open loop TTFT and E2E include it."""
    ttft_s: float | None = None
    """From sending the request to the first token at the client."""
    decode_s: float | None = None
    """From the first to the last token at the client."""
    e2e_s: float | None = None
    """From sending the request to the last byte of the answer at the client."""
    client_tok_per_sec: float | None = None
    """Decode rate by the client's clock: (n_predicted - those that came first together, mostly 1) / decode_s; `None`
    where it is not known how many those were."""
    client_tok_per_sec_least: float | None = None
    """Then a lower limit of it: later events / decode_s, since each holds a token at least."""
    burst_gaps_s: list[float] | None = None
    """Between bursts of tokens at the client, to the microsecond. Tokens of a burst follow each other within a tenth of
    the answer's typical gap, of the gaps in longer than which half of the time passes."""
    text_events: Count | None = None
    """Events of the stream that had text, calls of tools left out: each holds a token at least."""
    engine_prompt_s: float | None = None
    engine_decode_s: float | None = None
    phase_s: dict[str, float] | None = None
    """Seconds of decoding by phase, as far as the engine reports: draft, verify, plain (a step without a draft), state
    (saving it and undoing a draft), search (choosing what drafts), other."""
    rounds: int | None = None
    """Verify steps of the target that had a draft token or more."""
    plain_steps: int | None = None
    """Steps of the target without a draft; the reading of the prompt is none of them."""
    drafted_by_position: list[int] | None = None
    accepted_by_position: list[int] | None = None
    """How many rounds accepted the draft token at each position, from 0 (unconditional counts)."""
    accepted_by_length: list[int] | None = None
    """Accepted tokens by the length of the draft, from 1."""
    target_steps: list[list[int]] | None = None
    """Every step of the target after the reading of the prompt, in order: [drafted, accepted], [0, 0] without a draft.
    A step reads one token more than were drafted and brings one more than were accepted; the answer may end within the
    last. Where a rejection makes the target go back to a checkpoint, it reads the accepted tokens and its own again;
    what it accepts of them is a third number, and so on. The step then brings one token more than the last number.
    Where the prompt was read in one pass with a draft, that pass comes first, as [0, drafted, accepted]."""
    verified_n: Count | msgspec.UnsetType | None = msgspec.UNSET
    """Tokens of `draft_n` that the target read; `None` where the engine reads a part and does not report which. Absent
    in records of before: see `verified`."""
    synthetic: bool = False
    """Whether draft tokens were accepted at random (synthetic acceptance): the text is then no model's output."""
    error: RecordError | None = None
    started_at: str | None = None
    """ISO 8601 with offset."""

    @property
    def key(self) -> tuple[int, str, str, int]:
        """What identifies a measurement: (block, label, task, prompt_idx); a study's repetitions are its blocks."""
        return (self.block if self.schema_version else self.rep, self.label, self.task, self.prompt_idx)

    @property
    def verified(self) -> int | None:
        """`verified_n`; in a record without it all that was drafted, as by every engine that those are of."""
        return self.draft_n if self.verified_n is msgspec.UNSET else self.verified_n

    @property
    def read_tokens(self) -> int | None:
        """How many tokens of the prompt were read, those in the cache left out."""
        return None if self.prompt_tokens is None else self.prompt_tokens - (self.cached_tokens or 0)

    @property
    def tokens_listed(self) -> int | None:
        """How many token ids there are; `None` where not all of them came: the server's count is then the only one.

        No ids beside a text are no list of its tokens: a server that counted 0 had them stored as all.
        """
        return None if self.token_ids is None or (self.content and not self.token_ids) else len(self.token_ids)

    def changed(self, **fields: object) -> Record:
        """Return a copy with other values in `fields`. Raises TypeError for a name that is no field."""
        return msgspec.structs.replace(self, **fields)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data under the keys of its line."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    def to_line(self) -> str:
        """Return the record as a line of ASCII JSON without the newline; lone surrogates survive as escapes."""
        return json.dumps(self.to_dict(), ensure_ascii=True, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Record:
        """Make a record of plain data, other keys left out. Raises ValueError with what is wrong."""
        return msgspec.convert({key: values[key] for key in values if key in KEYS}, cls, strict=False)

    @classmethod
    def from_line(cls, line: str | bytes) -> Record:
        """Parse a line. Raises ValueError with what is wrong for anything that is no record."""
        try:
            return cls.from_own_line(line)
        except ValueError:  # slower, but takes what others write: more keys, lone surrogates, NaN, 3.0 for 3
            return cls.from_dict(_json_object(line))

    @classmethod
    def from_own_line(cls, line: str | bytes) -> Record:
        """Parse a line as benchctl writes it, with no key but a record's. Raises ValueError for every other."""
        return _decoder.decode(line)


_decoder = msgspec.json.Decoder(Record)
KEYS = frozenset(field.encode_name for field in msgspec.structs.fields(Record))
"""The keys of a record's line."""


def _json_object(line: str | bytes) -> dict[str, object]:
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - as for everything else that is no record
    return value
