"""Reads drafted and accepted tokens from a server's counters, and from the shape of an answer, whoever sent it.

llama-server and vLLM expose `<engine>:spec_decode_num_…_total` in Prometheus' text format, over the life of the server
and over all its requests: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format. There is a
reader only for shapes that a project documents or its source shows. A mean alone (`avg_decoded_tokens_per_iter`) gives
no counts: it is kept as the acceptance length that it is.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

from benchctl.data.counts import DraftCounts, contradicted, number
from benchctl.engines.base import Ledger
from benchctl.engines.common.wire import count_in, counts_in
from benchctl.engines.in_use import Counted

_SAMPLE = re.compile(r"(?:\{([^}]*)\})?[ \t]+([-+\w.]+)(?:[ \t]+\d+)?[ \t\r]*")
"""The rest of a line after the name: labels, the value, a time."""
_NUMBER = re.compile(r"\+?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_LONGEST_LINE = 4096
_DRAFTED = re.compile(r"^([A-Za-z_]\w{0,63}):spec_decode_num_draft_tokens_total[{ \t]", re.MULTILINE)
_POSITION = re.compile(r'(?:^|,)\s*position="(\d{1,5})"')
DEEPEST = 10_000
"""The deepest draft that is believed of a server."""
_COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")
_MOST = 2**53
"""The highest count that is believed of a server."""


Reading = TypeVar("Reading")


def read_counters(text: str, engine: str) -> Ledger:
    """Read the counters of `engine` (`llamacpp`, `vllm`), over all labels; `None` for what it does not count."""
    prefix = f"{engine}:spec_decode_num_"
    rounds, drafted, accepted = (read_total(text, f"{prefix}{counter}_total") for counter in _COUNTERS)
    positions: dict[int, int] = {}
    for labels, count in _series(text, f"{prefix}accepted_tokens_per_pos_total"):
        match = _POSITION.search(labels)
        if match is None or int(match[1]) >= DEEPEST or count is None:
            return Ledger(drafted, accepted, rounds)
        positions[int(match[1])] = positions.get(int(match[1]), 0) + count
    by_position = tuple(positions.get(i, 0) for i in range(max(positions) + 1)) if positions else None
    return Ledger(drafted, accepted, rounds, accepted_by_position=by_position)


def prefix_of(text: str) -> str | None:
    """Return below which name a server of whatever kind has such counters; `None` where it has none."""
    match = _DRAFTED.search(text)
    return match[1] if match else None


def read_total(text: str, name: str) -> int | None:
    """Return the sum of all series called `name`; `None` when there is none, or any of them is no count."""
    counts = [count for _, count in _series(text, name)]
    valid = [count for count in counts if count is not None]
    return sum(valid) if valid and len(valid) == len(counts) else None


def read_totals(text: str, series: Mapping[Counted, str]) -> dict[Counted, int]:
    """Return the totals of the series that are there, by what they count."""
    totals = {counted: read_total(text, name) for counted, name in series.items()}
    return {counted: total for counted, total in totals.items() if total is not None}


def _series(text: str, name: str) -> Iterator[tuple[str, int | None]]:
    """Yield labels and value of every series called `name`; no value where the line cannot be read."""
    # Without ^ the search looks for the name alone, ten times as fast on a large page: it is read beside every answer.
    for line in re.finditer(rf"{re.escape(name)}(?=[{{ \t])(.*)", text):
        if text[max(0, line.start() - 1) : line.start()] not in ("", "\n"):
            continue
        sample = _SAMPLE.fullmatch(line[1]) if len(line[1]) <= _LONGEST_LINE else None
        yield ("", None) if sample is None else (sample[1] or "", _number(sample[2]))


def wait_until(read: Callable[[], Reading], good: Callable[[Reading], bool], within_s: float) -> Reading:
    """Return what `read` returns once it is good, or so many seconds later: engines count and log beside answers."""
    deadline = time.monotonic() + within_s
    while True:
        reading = read()
        if good(reading) or time.monotonic() > deadline:
            return reading
        time.sleep(0.02)


def reached(by_count: Sequence[int]) -> tuple[int, ...]:
    """Return how many drafts had a token accepted at each position, of how many had 0, 1, 2, … of them accepted."""
    return tuple(itertools.accumulate(reversed(by_count[1:])))[::-1]


def by_length(rounds: Iterable[tuple[int, int]], longest: int) -> tuple[int, ...]:
    """Return how many tokens were accepted of drafts of exactly 1, 2, … tokens. `rounds`: (accepted, drafted) each."""
    counts = [0] * (longest + 1)
    for accepted, drafted in rounds:
        counts[min(drafted, longest)] += accepted
    return tuple(counts[1:])


def counted_since(before: Ledger, after: Ledger) -> Ledger:
    """Return what was counted between two readings; servers list a position once something was accepted there."""

    def more(name: str) -> int | None:
        early, late = getattr(before, name), getattr(after, name)
        return None if early is None or late is None else late - early

    by_position = None
    if after.accepted_by_position is not None:
        pairs = zip_longest(after.accepted_by_position, before.accepted_by_position or (), fillvalue=0)
        by_position = tuple(late - early for late, early in pairs)[: len(after.accepted_by_position)]
    return Ledger(more("drafted"), more("accepted"), more("rounds"), accepted_by_position=by_position)


def _number(text: str) -> int | None:
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return int(value) if value.is_integer() and value <= _MOST else None


@dataclass
class Tally:
    """Sums over the requests of a server so far. A sum is `None` while no answer has reported it."""

    answers: int = 0
    tokens: int = 0
    decoded: int = 0
    """Tokens but for each answer's first, which the reading of the prompt brings."""
    longest: int = 0
    """Tokens of the longest answer."""
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    plain_steps: int | None = 0
    """Steps without a draft; `None` once an answer did not report them."""
    stopped: int = 0
    """Answers that a stop string may have ended."""
    broken: int = 0
    """Requests without an answer: what was drafted for them is in the server's counters alone."""

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as broken when it raises, or is cancelled."""
        try:
            yield
        except BaseException:
            self.broken += 1
            raise

    def add(self, tokens: int, ledger: Ledger) -> None:
        """Add an answer of `tokens` tokens."""
        self.answers += 1
        self.tokens += tokens
        self.decoded += max(0, tokens - 1)
        self.longest = max(self.longest, tokens)
        self.rounds = _sum(self.rounds, ledger.rounds)
        self.drafted = _sum(self.drafted, ledger.drafted)
        self.accepted = _sum(self.accepted, ledger.accepted)
        if self.plain_steps is not None:
            self.plain_steps = None if ledger.plain_steps is None else self.plain_steps + ledger.plain_steps

    def agrees(self, counted: Ledger) -> bool | None:
        """Whether a server's counters over its whole life are these sums; `None` where either is not reported."""
        if counted.drafted is None or self.drafted is None:
            return None
        same = (counted.drafted, counted.accepted) == (self.drafted, self.accepted)
        return same and self.rounds in (None, counted.rounds)

    def most_drafted(self, *counts: int | None) -> int | None:
        """Return the largest of these counts of draft tokens and the sum here; `None` where none is reported."""
        return max((count for count in (self.drafted, *counts) if count is not None), default=None)


def _sum(total: int | None, count: int | None) -> int | None:
    return total if count is None else (total or 0) + count


@dataclass(frozen=True)
class Drafts:
    """The drafts that an answer reports."""

    shape: str
    """The field that reports them, and the project whose shape that is."""
    ledger: Ledger
    length: float | None = None
    """The acceptance length, where the answer tells that alone: tokens a verify step, its bonus token counted."""


def read_drafts(extra: Mapping[str, Any], usage: Mapping[str, Any], *, silent_is_none: bool = False) -> Drafts | None:
    """Return the drafts of an answer from its further fields and its `usage`; `None` where they are not reported.

    `silent_is_none`: the server reported drafts in `timings` before, whose draft keys llama.cpp leaves out where
    nothing was drafted.
    """
    for key, read in _SHAPES:
        fields = usage if key == "usage" else extra.get(key)
        drafts = read(fields) if isinstance(fields, dict) else None
        if drafts is not None:
            return drafts
    drafts = _mean("`avg_decoded_tokens_per_iter` (TensorRT-LLM's shape)", extra.get("avg_decoded_tokens_per_iter"))
    if drafts is not None:
        return drafts
    timings = extra.get("timings")
    if silent_is_none and isinstance(timings, dict) and not _DRAFT_KEYS & timings.keys():
        return Drafts(LLAMA_CPP, Ledger(drafted=0, accepted=0))
    return None


def contradictions(ledger: Ledger, tokens: int, *, free: bool = True) -> list[str]:
    """Return a sentence for everything in which the counts of an answer of `tokens` tokens contradict each other or it.

    By `benchctl.data.counts`; `free`: no grammar rules out what a round drafted.
    """
    accepted_at, drafted_at = ledger.accepted_by_position, ledger.drafted_by_position
    cut = number(len(accepted_at) if accepted_at else None)
    rules = contradicted(
        DraftCounts(
            tokens=tokens,
            drafted=number(ledger.drafted),
            verified=number(ledger.verified),
            accepted=number(ledger.accepted),
            rounds=number(ledger.rounds),
            plain=number(ledger.plain_steps),
            cut=cut,
            at_most=tokens + cut,
            accepted_by_position=number(sum(accepted_at) if accepted_at else None),
            drafted_by_position=number(sum(drafted_at) if drafted_at else None),
            accepted_by_length=number(sum(ledger.accepted_by_length) if ledger.accepted_by_length else None),
            free=free,
        )
    )
    counts = f"{ledger.accepted} of {ledger.drafted} draft tokens accepted in {ledger.rounds} rounds"
    counts = counts.replace("None", "?")
    return [f"{sentence} ({tokens} tokens, {counts})" for sentence, holds in rules.items() if holds]


LLAMA_CPP, IK_LLAMA_CPP, MLX_VLM = (
    f"`timings` ({owner} shape)" for owner in ("llama.cpp's", "ik_llama.cpp's", "mlx-vlm's")
)
IN_TIMINGS = frozenset({LLAMA_CPP, IK_LLAMA_CPP, MLX_VLM})
_DRAFT_KEYS = {"draft_n", "draft_n_accepted"}


def _timings(timings: Mapping[str, Any]) -> Drafts | None:
    """Read llama.cpp's keys, ik_llama.cpp's rows by depth, and mlx-vlm's rounds."""
    drafted, accepted, rounds = (_count(timings, name) for name in ("draft_n", "draft_n_accepted", "draft_rounds"))
    if drafted is None:
        return None
    if "draft_rounds" in timings:
        return Drafts(MLX_VLM, Ledger(drafted=drafted, accepted=accepted, rounds=rounds))
    if "draft_by_depth" in timings:
        drafted_at, accepted_at = (
            _by_depth(timings["draft_by_depth"], name) for name in ("draft_n", "draft_n_accepted")
        )
        rounds = drafted_at[0] if drafted_at and drafted_at[0] else None  # each drafts a first token
        return Drafts(IK_LLAMA_CPP, Ledger(drafted, accepted, rounds, drafted_at, accepted_at))
    return Drafts(LLAMA_CPP, Ledger(drafted=drafted, accepted=accepted))


def _by_depth(rows: object, name: str) -> tuple[int, ...] | None:
    """Return the counts by position; rows of depths without a draft are left out, so a depth that is missing has 0."""
    if not isinstance(rows, list) or not rows or len(rows) > DEEPEST:
        return None
    counts: dict[int, int] = {}
    for row in rows:
        depth, count = (
            (count_in(row.get("depth"), DEEPEST), _count(row, name)) if isinstance(row, dict) else (None, None)
        )
        if not depth or count is None or depth in counts:
            return None
        counts[depth] = count
    return tuple(counts.get(depth, 0) for depth in range(1, max(counts) + 1))


def _lm_studio(fields: Mapping[str, Any], key: str) -> Drafts | None:
    drafted = _count(fields, "total_draft_tokens_count")
    ledger = Ledger(drafted=drafted, accepted=_count(fields, "accepted_draft_tokens_count"))
    return None if drafted is None else Drafts(f"`{key}` (LM Studio's shape)", ledger)


def _vllm(metrics: Mapping[str, Any]) -> Drafts | None:
    ledger, shape = step_ledger(metrics), "`metrics.speculative_decoding` (vLLM's shape)"
    if ledger != Ledger():
        return Drafts(shape, ledger)
    figures = metrics.get("speculative_decoding")
    return _mean(shape, figures.get("mean_acceptance_length")) if isinstance(figures, dict) else None


def _sglang(meta: Mapping[str, Any]) -> Drafts | None:
    """Read SGLang's `meta_info`, whose drafted tokens are a count with some algorithms only, which it does not name."""
    ledger, shape = verified_ledger(meta, counted=False), "`meta_info` (SGLang's shape)"
    if ledger != Ledger():
        return Drafts(shape, ledger)
    return _mean(shape, meta.get("spec_accept_length"))


def _tensorrt_llm(figures: Mapping[str, Any]) -> Drafts | None:
    """Read TensorRT-LLM's figures of a choice (its pull request 19311, aiperf's 1433)."""
    drafted, accepted = (_count(figures, f"total_{name}") for name in ("draft_tokens", "accepted_draft_tokens"))
    if drafted is None:
        return None
    rounds = _count(figures, "num_spec_steps")
    histogram = counts_in(figures.get("acceptance_histogram"), _MOST, longest=DEEPEST + 1)
    ledger = Ledger(drafted, accepted, rounds, accepted_by_position=_whole(histogram, accepted, rounds))
    return Drafts("`choices[].speculative_decoding` (TensorRT-LLM's shape)", ledger)


def _whole(histogram: list[int] | None, accepted: int | None, rounds: int | None) -> tuple[int, ...] | None:
    """Return what was accepted by position; `None` where the histogram is of a tree, or of other rounds than these."""
    by_position = reached(histogram) if histogram else ()
    return by_position if histogram and (sum(by_position), sum(histogram)) == (accepted, rounds) else None


def _mean(shape: str, length: object) -> Drafts | None:
    if isinstance(length, bool) or not isinstance(length, int | float) or not 1 <= length <= DEEPEST:
        return None
    return Drafts(shape, Ledger(), length=float(length))


def verified_ledger(meta: Mapping[str, Any], *, counted: bool) -> Ledger:
    """Return the ledger of an answer from SGLang's figures; `counted`: whether its drafted tokens are a count."""
    rounds = _count(meta, "spec_verify_ct")
    if not rounds:
        return Ledger()
    histogram = counts_in(meta.get("spec_correct_drafts_histogram"), _MOST, longest=DEEPEST + 1)
    accepted = _count(meta, "spec_num_correct_drafts")
    return Ledger(
        drafted=_count(meta, "spec_num_proposed_drafts") if counted else None,
        accepted=accepted,
        rounds=rounds,
        accepted_by_position=_whole(histogram, accepted, rounds),
    )


_SHAPES: tuple[tuple[str, Callable[[Mapping[str, Any]], Drafts | None]], ...] = (
    ("timings", _timings),
    ("metrics", _vllm),
    ("meta_info", _sglang),
    ("speculative_decoding", _tensorrt_llm),
    ("usage", partial(_lm_studio, key="usage")),
    ("stats", partial(_lm_studio, key="stats")),
)
"""The field of an answer, or of its last event, that has a shape, and the shape's reader."""


def step_ledger(metrics: Mapping[str, Any]) -> Ledger:
    """Return the ledger of an answer from vLLM's `metrics` of it; all `None` where it does not speculate."""
    figures = metrics.get("speculative_decoding")
    if not isinstance(figures, dict):
        return Ledger()
    steps, drafted = (counts_in(figures.get(name), _MOST) for name in ("per_step_accepted", "per_step_drafted"))
    depth = count_in(figures.get("num_spec_tokens"), DEEPEST)
    accepted_at = drafted_at = lengths = None
    if depth is not None and figures.get("num_spec_steps") == 0:
        accepted_at = drafted_at = (0,) * depth
    elif depth is not None and steps is not None and drafted is not None:
        accepted_at, drafted_at = (_by_position(counts, depth) for counts in (steps, drafted))
        lengths = by_length(zip(steps, drafted, strict=False), depth)
    elif counts := counts_in(figures.get("acceptance_histogram"), _MOST, longest=DEEPEST + 1):
        accepted_at = reached(counts)
    return Ledger(
        drafted=_count(figures, "num_draft_tokens"),
        accepted=_count(figures, "num_accepted_draft_tokens"),
        rounds=_count(figures, "num_spec_steps"),
        drafted_by_position=drafted_at,
        accepted_by_position=accepted_at,
        accepted_by_length=lengths,
    )


def _count(fields: Mapping[str, Any], name: str) -> int | None:
    return count_in(fields.get(name), _MOST)


def _by_position(counts: list[int], depth: int) -> tuple[int, ...]:
    """Return how many of these counts, one a step, are more than each position below `depth`."""
    by_count = [0] * (depth + 1)
    for count in counts:
        by_count[min(count, depth)] += 1
    return reached(by_count)
