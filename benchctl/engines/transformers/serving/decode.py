"""The decoding loop: draft, verify in a single pass, roll back what was not accepted.

Between two rounds the state holds every token but the last, which the next pass reads first. Tokens are chosen
greedily, or sampled so that the target's distribution is kept, after Leviathan et al. 2023
(https://arxiv.org/abs/2211.17192) and Chen et al. 2023 (https://arxiv.org/abs/2302.01318): a draft token x that was
drawn from the draft's distribution q is accepted with probability min(1, p(x) / q(x)); at the first rejection the token
is drawn from norm(max(0, p - q)).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from transformers import LogitsProcessor, LogitsProcessorList, RepetitionPenaltyLogitsProcessor

from benchctl.engines.transformers.serving.decoder import Decoder, Parts, State

_SHORTLIST = 128
"""Number of tokens that are sorted first, in addition to top-k. More are sorted if these are not enough."""


class _Bias(LogitsProcessor):  # type: ignore[misc]
    """Adds to the logits of tokens. transformers' own fails on a draft of another size of vocabulary."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._tokens, self._values = torch.tensor(list(bias)), torch.tensor(list(bias.values()))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the changed `scores`, `[rows, vocabulary]`."""
        in_vocabulary = self._tokens < scores.shape[-1]
        values = self._values[in_vocabulary].to(scores).expand(len(scores), -1)
        return scores.index_add(-1, self._tokens[in_vocabulary].to(scores.device), values)


@dataclass(frozen=True)
class Sampler:
    """How a request chooses; temperature 0 is greedy. `top_k` 0 and `top_p` 1 leave the distribution whole.

    `bias` is added to logits, by token; then `penalty` divides those of tokens of prompt and answer, or multiplies
    negative ones, as transformers' own penalty does.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1
    penalty: float = 1.0
    bias: Mapping[int, float] = field(default_factory=dict)

    def processors(self) -> LogitsProcessorList:
        """Return the processors that change logits; the list is empty if nothing does."""
        processors = LogitsProcessorList()
        if self.bias:
            processors.append(_Bias(self.bias))
        if self.penalty != 1:
            processors.append(RepetitionPenaltyLogitsProcessor(self.penalty))
        return processors

    def chooser(self, never: Collection[int] = ()) -> Chooser:
        """Return the chooser of a request; it starts from the seed and never chooses tokens of `never`."""
        return Chooser(self, never)


class Chooser:
    """Chooses the tokens of a request."""

    def __init__(self, sampler: Sampler, never: Collection[int] = ()) -> None:
        self.sampler = sampler
        self.greedy = sampler.temperature == 0
        self.never = frozenset(never)
        self.context: Sequence[int] = ()
        """Prompt and answer up to now; a penalty applies to these tokens."""
        self._processors = sampler.processors()
        self._never = torch.tensor(sorted(never))
        # Only uniform numbers are drawn, on the CPU, so that a seed gives the same numbers on every device.
        self._generator = torch.Generator().manual_seed(sampler.seed)

    def first(self, logits: torch.Tensor) -> int:
        """Choose after the last of `logits`."""
        return self.draft(logits)[0]

    def draft(self, logits: torch.Tensor, drafted: Sequence[int] = ()) -> tuple[int, torch.Tensor | None]:
        """Choose the draft token that follows `drafted`, after the last of `logits`; also the distribution it was drawn
        from, unless greedy."""
        logits = self.processed(logits[-1:], self.context, drafted)
        if self.greedy:
            return self._likeliest(logits)[-1], None
        q = self.probabilities(logits[-1])
        return self._draw(q), q

    def verify(
        self, tokens: Sequence[int], distributions: Sequence[torch.Tensor | None], logits: torch.Tensor
    ) -> tuple[int, int]:
        """Return how many draft tokens are accepted, and the token that follows them.

        `logits` are the target's after the token before the draft and after each of the draft's, `[draft + 1,
        vocabulary]`. A distribution of `None` is that of a token that was certain: q is 1 there.
        """
        logits = self.processed(logits, self.context, tokens)
        if self.greedy:
            likeliest = self._likeliest(logits)
            accepted = 0
            while accepted < len(tokens) and tokens[accepted] == likeliest[accepted]:
                accepted += 1
            return accepted, likeliest[accepted]
        p = self.probabilities(logits)
        if not tokens:
            return 0, self._draw(p[0])
        drafted = torch.tensor(tokens, device=p.device)[:, None]
        target_chances = p[: len(tokens)].gather(-1, drafted)[:, 0].tolist()
        certain = p.new_ones(())
        drawn = [certain if q is None else q[token].to(p) for q, token in zip(distributions, tokens, strict=True)]
        draft_chances, accepted = torch.stack(drawn).tolist(), 0
        while accepted < len(tokens) and self._uniform() * draft_chances[accepted] < target_chances[accepted]:
            accepted += 1
        if accepted == len(tokens):
            return accepted, self._draw(p[accepted])
        q = distributions[accepted]
        if q is None:
            q = torch.zeros_like(p[accepted]).index_fill_(-1, drafted[accepted], 1.0)
        residual = (p[accepted] - q.to(p)).clamp_(min=0)
        # The residual is empty only if p equals q up to rounding; then the token is drawn from p.
        return accepted, self._draw(residual if float(residual.sum()) > 0 else p[accepted])

    def processed(self, logits: torch.Tensor, tokens: Sequence[int], drafted: Sequence[int] = ()) -> torch.Tensor:
        """Return logits, `[rows, vocabulary]`, as penalty and biases leave them: the last after all of `tokens` and
        `drafted`, each before after a token less. Without penalty and biases no step copies the answer so far."""
        if not self._processors:
            return logits
        read = torch.tensor([[*tokens, *drafted]], device=logits.device)
        ends = range(read.shape[1] - len(logits) + 1, read.shape[1] + 1)
        rows = zip(ends, logits.float().split(1), strict=True)
        return torch.cat([self._processors(read[:, :end], row) for end, row in rows])

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the distributions that are sampled from: temperature, then top-k, then top-p.

        `[..., vocabulary]` to the same, in float32, on the device of the logits.
        """
        scaled = self.allowed(logits.detach().float() / self.sampler.temperature)
        top_p = self.sampler.top_p
        if not self._limited(scaled) and top_p >= 1:
            return scaled.softmax(-1)
        chances, ids = self._shortlist(scaled)
        if top_p < 1:
            beyond = chances.cumsum(-1) - chances >= top_p
            beyond[..., 0] = False
            chances = chances.masked_fill(beyond, 0.0)
            chances /= chances.sum(-1, keepdim=True)
        return torch.zeros_like(scaled).scatter_(-1, ids, chances)

    def _limited(self, scaled: torch.Tensor) -> bool:
        return bool(0 < self.sampler.top_k < scaled.shape[-1])

    def _shortlist(self, scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the likeliest tokens' probabilities, descending, and their ids: so many that top-k and top-p take no
        others. To sort a vocabulary takes longer than a small model's step.

        With top-k the probabilities are those among its tokens; several that are as likely as its last are all in it.
        """
        vocabulary, top_k = scaled.shape[-1], self.sampler.top_k
        size = _SHORTLIST + (top_k if self._limited(scaled) else 0)
        while True:
            values, ids = scaled.topk(min(size, vocabulary), dim=-1)
            if self._limited(scaled):
                values = values.masked_fill(values < values[..., top_k - 1 : top_k], -torch.inf)
                complete = values[..., -1] == -torch.inf
                chances = values.softmax(-1)
            else:
                chances = (values - scaled.logsumexp(-1, keepdim=True)).exp()
                complete = chances.sum(-1) >= self.sampler.top_p
            if size >= vocabulary or bool(complete.all()):
                return chances, ids
            size *= 8

    def allowed(self, scores: torch.Tensor) -> torch.Tensor:
        """Return scores, `[..., vocabulary]`, with minus infinity for the tokens of `never`."""
        return scores.index_fill(-1, self._never.to(scores.device), -torch.inf) if len(self._never) else scores

    def _likeliest(self, logits: torch.Tensor) -> list[int]:
        likeliest: list[int] = self.allowed(logits).argmax(-1).tolist()
        return likeliest

    def _draw(self, weights: torch.Tensor) -> int:
        """Return the token at which the sum of the weights passes a uniform share of all."""
        # Metal has no float64.
        reached = weights.cumsum(-1, dtype=torch.float32 if weights.device.type == "mps" else torch.float64)
        total = reached[-1:]
        # A threshold rounded up to the total would lie beyond the last token with a weight.
        threshold = torch.minimum(total * self._uniform(), total.nextafter(torch.zeros_like(total)))
        return int(torch.searchsorted(reached, threshold, right=True))

    def _uniform(self) -> float:
        return float(torch.rand((), dtype=torch.float64, generator=self._generator))


Phase = Literal["prompt", "draft", "verify", "plain", "rollback", "search", "other"]
"""prompt: reading it; verify: the target's pass over a draft; plain: its step without a draft; rollback: snapshots and
what undoes a draft; search: choosing what to leave out; other: everything else, such as handing tokens out."""


def synchronized_now(device: torch.device | str) -> float:
    """Return the seconds of `time.perf_counter` once the device has done all that it was given."""
    wait = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(torch.device(device).type)
    if wait is not None:
        wait()
    return time.perf_counter()


def timed(state: State, tokens: Sequence[int]) -> tuple[torch.Tensor, float]:
    """Read tokens in a pass; return the logits after each, and the seconds that it took."""
    began = synchronized_now(state.decoder.device)
    logits = state.advance(tokens, keep=len(tokens))
    return logits, synchronized_now(state.decoder.device) - began


class PhaseClock:
    """Sums seconds by phase; whatever passes between two calls belongs to the phase that the second names."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    def passed(self, phase: Phase) -> None:
        """Count the time since the last call to `phase`."""
        now = synchronized_now(self._device)
        self.seconds[phase] += now - self._since
        self._since = now


@dataclass(frozen=True)
class Round:
    """The input of a drafter. It may read tokens with `state`; the caller restores the state afterwards."""

    state: State
    tokens: Sequence[int]
    """The prompt and the answer so far; `state` has read all but the last."""
    depth: int
    """Largest number of draft tokens that this round can use."""
    chooser: Chooser
    ends: Collection[int]
    """Tokens after which nothing is drafted."""
    clock: PhaseClock


@dataclass(frozen=True)
class Draft:
    """Draft tokens, and the distribution that each was drawn from (`[vocabulary]`; `None`: it was certain)."""

    tokens: Sequence[int]
    distributions: Sequence[torch.Tensor | None]
    left_out: Parts | None = None
    """Parts of the target that were left out; `None` if the target did not draft."""


class Drafter(Protocol):
    """Guesses the next tokens, for one request at a time."""

    depth: int
    """Largest number of tokens in a draft, from the recipe. `make_drafter` sets it."""

    def start(self, decoder: Decoder) -> None:
        """Begin a request."""

    def draft(self, current: Round) -> Draft:
        """Guess at most `current.depth` tokens; an empty draft is allowed."""

    def verified(self, current: Round, draft: Draft, accepted: int, logits: torch.Tensor) -> None:
        """Learn from a verified draft: how many of its tokens were accepted, and the target's logits."""

    def describe(self) -> dict[str, object]:
        """Return evidence that it is set up as requested, as plain data."""


@dataclass(frozen=True)
class Step:
    """The tokens that a pass of the target brought, and how many of its draft were drafted and accepted."""

    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    ended: bool = False
    """Whether the last token ends the answer."""
    left_out: Parts | None = None
    """As in `Draft`."""


@dataclass(frozen=True)
class Task:
    """An answer that is to be decoded. `ends`: tokens that end it."""

    prompt: Sequence[int]
    max_tokens: int
    chooser: Chooser
    ends: frozenset[int] = frozenset()


def decode(decoder: Decoder, task: Task, drafter: Drafter | None, clock: PhaseClock) -> Iterator[Step]:
    """Yield the steps of an answer. Without a drafter each brings a token of the target alone."""
    state = State(decoder)
    tokens = list(task.prompt)
    task.chooser.context = tokens
    with torch.inference_mode():
        if drafter is not None:
            drafter.start(decoder)
        clock.passed("other")
        step = _plain(state, tokens, task, clock, "prompt")
    remaining = task.max_tokens
    while True:
        tokens += step.tokens
        remaining -= len(step.tokens)
        yield step
        if step.ended or remaining <= 0:
            return
        clock.passed("other")
        with torch.inference_mode():
            if drafter is None or remaining == 1:
                step = _plain(state, tokens[-1:], task, clock, "plain")
            else:
                depth = min(remaining - 1, drafter.depth)
                current = Round(state, tokens, depth, task.chooser, task.ends, clock)
                step = _round(current, drafter, clock)


def _plain(state: State, tokens: Sequence[int], task: Task, clock: PhaseClock, phase: Phase) -> Step:
    token = task.chooser.first(state.advance(tokens))
    clock.passed(phase)
    return Step((token,), ended=token in task.ends)


def _round(current: Round, drafter: Drafter, clock: PhaseClock) -> Step:
    state = current.state
    before = state.snapshot()
    clock.passed("rollback")
    draft = drafter.draft(current)
    clock.passed("draft")
    if state.read != before.read:
        state.restore(before)
    clock.passed("rollback")
    logits = state.verify([current.tokens[-1], *draft.tokens])
    accepted, following = current.chooser.verify(draft.tokens, draft.distributions, logits)
    clock.passed("verify" if draft.tokens else "plain")
    new_tokens = [*draft.tokens[:accepted], following]
    ended = False
    for index, token in enumerate(new_tokens):
        if token in current.ends:
            new_tokens, ended = new_tokens[: index + 1], True
            break
    accepted = min(accepted, len(new_tokens))
    # After the end of an answer nothing is read, so its state may be wrong.
    if not ended:
        state.keep(before, accepted + 1)
    clock.passed("rollback")
    drafter.verified(current, draft, accepted, logits)
    clock.passed("search")
    return Step(tuple(new_tokens), len(draft.tokens), accepted, ended, draft.left_out)
