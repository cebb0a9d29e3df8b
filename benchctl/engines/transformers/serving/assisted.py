"""Assisted generation by transformers itself: its own `generate`, candidates, verification and rollback.

It drafts before it reads the prompt, and then reads both in a single pass, which is its first round. It takes depth and
threshold from the draft's generation configuration, and silently ignores them as keywords; so they are written there.
It does not report what it drafted and accepted, so its candidate generator is wrapped to count that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.streamers import BaseStreamer

from benchctl.engines.transformers.serving import UnsuitableError
from benchctl.engines.transformers.serving.decode import PhaseClock, Sampler, Step, Task
from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.loading import Loaded

OnStep = Callable[[Step], None]


@dataclass
class Assistance:
    """What all of transformers' ways to assist share."""

    target: Loaded
    depth: int
    options: Mapping[str, Any]
    draft: Loaded | None

    def __post_init__(self) -> None:
        """Set up the draft. Raises UnsuitableError."""

    def keywords(self) -> dict[str, Any]:
        """Return further arguments for `generate`."""
        raise NotImplementedError

    def describe(self) -> dict[str, object]:
        """Return evidence that it is set up as requested; the depth is reported elsewhere."""
        return {}

    def run(self, decoder: Decoder, task: Task, clock: PhaseClock, on_step: OnStep) -> None:
        """Decode an answer."""
        listener, model = _Listener(clock, task.ends, on_step), decoder.model
        prompt = torch.tensor([task.prompt], device=decoder.device)
        make = model._get_candidate_generator
        model._get_candidate_generator = lambda **keywords: listener.attach(make(**keywords))
        try:
            with torch.inference_mode():
                model.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),  # else tokens with the padding's id count as padding
                    generation_config=_settings(task),
                    logits_processor=task.chooser.sampler.processors(),  # also for the draft's logits
                    streamer=listener,
                    **self.keywords(),
                )
        finally:
            del model._get_candidate_generator


class Assisted(Assistance):
    """`assisted`: a smaller model of the same vocabulary drafts, always to the requested depth."""

    def __post_init__(self) -> None:
        if self.draft is None:
            raise UnsuitableError("it needs a draft model")
        self.assistant = self.draft
        _set_depth(self.draft.model, self.depth)

    def keywords(self) -> dict[str, Any]:
        """Name the draft."""
        return {"assistant_model": self.assistant.model}

    def describe(self) -> dict[str, object]:
        """Return the depth that the draft's configuration holds."""
        return {"max": self.assistant.model.generation_config.num_assistant_tokens, "draft": str(self.assistant.folder)}


class AssistedUniversal(Assisted):
    """`assisted-universal`: the draft has another tokenizer; its text is tokenized again."""

    def keywords(self) -> dict[str, Any]:
        """Name the draft and both tokenizers."""
        tokenizers = {"tokenizer": self.target.tokenizer, "assistant_tokenizer": self.assistant.tokenizer}
        return {**super().keywords(), **tokenizers}


class PromptLookup(Assistance):
    """`prompt-lookup`: the text that followed the last tokens before is the draft."""

    def keywords(self) -> dict[str, Any]:
        """Return the depth and how long a match is looked for."""
        longest = self.options.get("size_n", 2)
        return {"prompt_lookup_num_tokens": self.depth, "max_matching_ngram_size": longest}

    def describe(self) -> dict[str, object]:
        """Return that it may find nothing."""
        return {"may_find_nothing": True}


class EarlyExit(Assistance):
    """`early-exit`: the first layers draft, with a cache of their own."""

    def __post_init__(self) -> None:
        layers = self.target.model.config.get_text_config().num_hidden_layers
        self.exit = self.options.get("exit_layer", max(1, layers // 2))
        if not 0 < self.exit < layers:
            raise UnsuitableError(f"exit_layer is {self.exit}, and the model has {layers} layers: it must be less")
        _set_depth(self.target.model, self.depth)

    def keywords(self) -> dict[str, Any]:
        """Return where to exit."""
        return {"assistant_early_exit": self.exit}


def _set_depth(model: PreTrainedModel, depth: int) -> None:
    """Have a model draft to a fixed depth: no threshold, no schedule."""
    model.generation_config.num_assistant_tokens = depth
    model.generation_config.num_assistant_tokens_schedule = "constant"
    model.generation_config.assistant_confidence_threshold = 0.0


def _settings(task: Task) -> GenerationConfig:
    """Return the generation configuration of a task."""
    sampler: Sampler = task.chooser.sampler
    sampled: dict[str, Any] = {}
    if sampler.temperature:
        sampled = {"temperature": sampler.temperature, "top_k": sampler.top_k, "top_p": sampler.top_p}
        torch.manual_seed(sampler.seed)  # generate draws from torch's global generator
    return GenerationConfig(
        max_length=len(task.prompt) + task.max_tokens,
        do_sample=bool(sampler.temperature),
        # Without it `generate` would use the model's own; -1 is no token.
        eos_token_id=sorted(task.ends) or [-1],
        pad_token_id=0,
        suppress_tokens=sorted(task.chooser.never) or None,
        return_dict_in_generate=True,
        **sampled,
    )


class _Listener(BaseStreamer):  # type: ignore[misc]
    """Counts what `generate` drafts, accepts and generates."""

    def __init__(self, clock: PhaseClock, ends: Collection[int], on_step: OnStep) -> None:
        self._clock, self._ends, self._on_step = clock, ends, on_step
        self._drafted = 0
        self._heard = 0
        """Number of streamed values: the prompt is the first, then comes one for each step."""

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt, then the tokens of each step."""
        self._heard += 1
        if self._heard == 1:
            return
        tokens = tuple(value.flatten().tolist())
        self._clock.passed("prompt" if self._heard == 2 else "verify" if self._drafted else "plain")
        self._on_step(Step(tokens, self._drafted, min(self._drafted, len(tokens) - 1), tokens[-1] in self._ends))
        self._clock.passed("other")

    def end(self) -> None:
        """Do nothing at the end."""

    def attach(self, generator: CandidateGenerator) -> CandidateGenerator:
        """Wrap a generator to count its candidates and to time it."""
        get = generator.get_candidates

        def get_candidates(input_ids: torch.Tensor, *args: object, **keywords: object) -> tuple[torch.Tensor, Any]:
            self._clock.passed("rollback")
            candidates = get(input_ids, *args, **keywords)
            self._drafted = candidates[0].shape[1] - input_ids.shape[1]
            self._clock.passed("draft")
            return candidates  # type: ignore[no-any-return]

        generator.get_candidates = get_candidates
        return generator
