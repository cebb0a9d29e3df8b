"""The target alone, scoring prefixes: llama-server returns logits instead of answers.

How many tokens a batch holds decides the last bits of the logits, so a prefix is read in pieces, and every piece is a
request that keeps what was read before (`cache_prompt`) and evaluates the rest in a single batch. Only ever reading on
needs no way back, which a recurrent state does not have. Logits come from before its samplers: what the recipe's
penalties and biases add is added here; `repeat_penalty` multiplies logits, whose common offset is not known.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

from benchctl.engines.base import Ledger, Rendered
from benchctl.engines.common.endpoint import (
    EndpointTarget,
    MetricsReading,
    Pages,
    Recognised,
    ServerFamily,
    as_sent,
    short_line,
)
from benchctl.engines.common.score import ServerScorer
from benchctl.engines.common.wire import count_in, id_of, logprob_of, protocol_error
from benchctl.engines.llama_cpp.attest import make_ledger, slot_states, speculating
from benchctl.engines.llama_cpp.command import BATCH, value_of
from benchctl.engines.llama_cpp.probe import Flags
from benchctl.engines.llama_cpp.requests import LAST_TOKENS, prompt_text, scoring_body, tokenize
from benchctl.engines.llama_cpp.server import LlamaServer
from benchctl.engines.scoring import Scores
from benchctl.errors import EngineError
from benchctl.models.gguf_facts import read_facts
from benchctl.models.gguf_header import read_header
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import GREEDY, Sampling

RISING = 200
"""Tokens that are read in addition where less likely tokens may rise to the top."""


class LogitShift:
    """Shifts the log-probabilities of likely tokens as the recipe's sampling does; equal up to a common offset."""

    def __init__(self, sampling: Sampling) -> None:
        self._bias = sampling.logit_bias
        self._presence, self._frequency = sampling.presence_penalty, sampling.frequency_penalty
        self._penalises = bool(self._presence or self._frequency)
        penalty_rise = -min(0.0, self._presence) - LAST_TOKENS * min(0.0, self._frequency)
        self._rise = max([0.0, *self._bias.values()]) + penalty_rise
        """How much a token may gain, at most."""

    @property
    def more(self) -> int:
        """How many tokens must be read in addition to know the likeliest: so many may fall, or rise from below."""
        falling = sum(value < 0 for value in self._bias.values()) + LAST_TOKENS * self._penalises
        return falling + RISING * (self._rise > 0)

    def apply(self, logprobs: Mapping[int, float], prefix: Sequence[int]) -> dict[int, float]:
        """Return the shifted values, likeliest first. Raises EngineError where an unread token may be among them."""
        if not self._bias and not self._penalises:
            return dict(logprobs)
        counts = Counter(prefix[-LAST_TOKENS:]) if self._penalises else Counter[int]()
        shifted = {
            token: value + self._bias.get(token, 0.0) - self._presence * (counts[token] > 0)
            - self._frequency * counts[token]
            for token, value in logprobs.items()
        }  # fmt: skip
        ordered = dict(sorted(shifted.items(), key=lambda pair: -pair[1]))
        second = list(ordered.values())[:2][-1]
        if self._rise and second < min(logprobs.values()) + self._rise:
            raise EngineError(
                "A token beyond those that were read may be the likeliest with this logit_bias or penalty.",
                kind="protocol",
                fix="Use smaller biases, or negative ones, which forbid tokens.",
            )
        return ordered


SPLIT = 4
"""Where llama-server keeps checkpoints, it evaluates so many last tokens of a prompt in a batch of their own, and
makes a further cut a physical batch before them (`checkpoint_offsets` in tools/server/server-context.cpp)."""


def unsplit(argv: Sequence[str], flags: Flags) -> tuple[str, ...]:
    """Return a command line without prompt checkpoints, which would split what is read on in two."""
    flag = flags.first("--ctx-checkpoints")
    return (*argv, flag, "0") if flag else tuple(argv)


def split_batch(argv: Sequence[str], flags: Flags) -> int | None:
    """Return the physical batch size of a server that splits prompts for checkpoints; `None` where it does not.

    It keeps checkpoints of models whose memory cannot go back: recurrent states, and attention in a sliding window.
    """
    if "--ctx-checkpoints" not in flags or value_of(argv, flags.all_names("--ctx-checkpoints")) == "0":
        return None
    model = Path(value_of(argv, flags.all_names("--model")) or "")
    header, memory = read_header(model), read_facts(model).memory
    window = header.integer(f"{header.text('general.architecture')}.attention.sliding_window")
    return int(value_of(argv, flags.all_names("--ubatch-size")) or BATCH) if memory != "attention" or window else None


class Served(EndpointTarget):
    """A llama-server that runs already and serves the target."""

    def render(self, prompt: Prompt) -> Rendered:
        """Apply its chat template and tokenize; the text is what is sent."""
        return Rendered(as_sent(prompt), tokenize(self.http, prompt_text(self.http, prompt), special=True))

    def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request for logits."""
        return self.http.post("/completion", body, timeout_s=self.timeout_s)


class LlamaScorer(ServerScorer["LlamaServer | Served"]):
    """A llama-server that scores; see `benchctl.engines.scoring.Scorer`, and `SlotScorer` of a server of our own."""

    in_batches = True

    def __init__(
        self,
        server: LlamaServer | Served,
        command: Sequence[str],
        *,
        splits: int | None = None,
        left_out: frozenset[int] = frozenset(),
        shift: LogitShift | None = None,
    ) -> None:
        """`splits`: the physical batch size of a server that cuts prompts for checkpoints; `None` where it does not.

        `left_out`: tokens that are never returned; `shift`: what the recipe's sampling adds to logits.
        """
        super().__init__(server, command)
        self._splits = splits
        self._left_out = left_out
        self._shift = shift or LogitShift(GREEDY)
        self._forced: int | None = None

    def read_prompt(self, prompt: Sequence[int], top: int) -> Scores:
        """Read a prompt from its beginning, split where a measured request would be."""
        cuts = [] if self._splits is None else [len(prompt) - SPLIT - self._splits, len(prompt) - SPLIT]
        ends = [end for end in cuts if end > 0] + [len(prompt)]
        for index, end in enumerate(ends[:-1]):
            self._score(prompt[:end], 1, cached=index > 0)
        return self._score(prompt, top, cached=len(ends) > 1)

    def read_on(self, prefix: Sequence[int], top: int) -> Scores:
        """Read the rest of `prefix` in a single batch."""
        return self._score(prefix, top, cached=True)

    def read_whole(self, prefix: Sequence[int], top: int) -> Scores:
        """Read all of `prefix` at once (in pieces of the physical batch size, where it is longer)."""
        return self._score(prefix, top, cached=False)

    def _score(self, prefix: Sequence[int], top: int, *, cached: bool) -> Scores:
        return self._scores(self._server.ask(self._body(list(prefix), top, cached=cached)), prefix, top)

    def _body(self, prompt: list[int] | list[list[int]], top: int, *, cached: bool) -> dict[str, Any]:
        if self._forced is None:
            self._forced = tokenize(self._server.http, "a", special=False)[-1]
        return scoring_body(
            prompt, top=top + len(self._left_out) + self._shift.more, cached=cached, forced=self._forced
        )

    def _scores(self, answer: Mapping[str, Any], prefix: Sequence[int], top: int) -> Scores:
        timings = answer.get("timings")
        evaluated = count_in(timings.get("prompt_n"), 2**31) if isinstance(timings, dict) else None
        logprobs = {token: value for token, value in likeliest(answer).items() if token not in self._left_out}
        if evaluated is None or not logprobs:
            raise protocol_error("The engine returned no probabilities of the next token.")
        likely = self._shift.apply(logprobs, prefix)
        return Scores(dict(itertools.islice(likely.items(), top)) if self._shift.more else likely, evaluated)

    def read_together(self, prefixes: Sequence[Sequence[int]], top: int) -> list[Scores]:
        """Read on in all slots, by a request of several prompts: llama-server gives each to the slot that holds most of
        it, and evaluates what is new in a single batch."""
        assert isinstance(self._server, LlamaServer)
        answers = self._server.ask_all(self._body(list(map(list, prefixes)), top, cached=True))
        by_place = {count_in(answer.get("index")): answer for answer in answers}
        if by_place.keys() != set(range(len(prefixes))):
            raise protocol_error("The engine did not answer every prompt of the request.")
        return [self._scores(by_place[index], prefix, top) for index, prefix in enumerate(prefixes)]


def likeliest(answer: Mapping[str, Any]) -> dict[int, float]:
    """Read the likeliest tokens of the only position that was scored; empty where anything in it is malformed."""
    try:
        (position,) = answer["completion_probabilities"]
        return {id_of(entry["id"]): logprob_of(entry["logprob"]) for entry in position["top_logprobs"]}
    except (KeyError, TypeError, ValueError):
        return {}


_metrics = methodcaller("metrics", "llamacpp", "llamacpp:tokens_predicted_total")


def _recognise(pages: Pages) -> Recognised | None:
    props = pages.object("/props")
    if "build_info" not in props and "total_slots" not in props:
        return None
    version, slots = short_line(props.get("build_info")), pages.json("/slots")
    reported = [state for state in speculating(slots) if state is not None] if isinstance(slots, list) else []
    reading = _metrics(pages)
    evidence = (
        f"GET /props: build {version}, total_slots = {short_line(props.get('total_slots'))}",
        f"GET /slots: speculative = {slot_states(reported)}",
        str(reading or MetricsReading(Ledger(), None)),
    )
    return Recognised(version, any(reported) if reported else None, reading, evidence)


def _ledger(server: Recognised, extra: Mapping[str, Any], before: Ledger, after: Ledger) -> Ledger:
    timings = extra.get("timings")
    return make_ledger(before, after, timings if isinstance(timings, dict) else {}, speculating=bool(server.speculates))


FAMILY = ServerFamily(_recognise, _ledger, _metrics, lambda target: LlamaScorer(Served.of(target), ()))
