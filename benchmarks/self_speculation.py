"""What a round of self-speculation costs beside bare passes of the model, and what our loop costs beside transformers'.

    python -m benchmarks.self_speculation MODEL [--dtype bfloat16] [--tokens 48] [--types self-layerskip,self-knapspec]

MODEL is a Hugging Face folder. Needs torch and transformers. For every type: is the answer the target's own, and how
long it took beside what its passes take alone. Those are timed in the same run but outside benchctl: `model()` with
transformers' own cache at the middle of the answer, half of the repeats before the answer and half after it, the
medians. c is a draft's pass (of every set of parts that drafted), v the check over the tokens of a round, both over a
plain step. "realised" is their sum over the answer's time, so that whatever our loop adds lowers it; "overhead" is what
is left of the time without the search. Of a draft that is the target itself ("oracle") every token is accepted.

Then plain decoding and prompt-lookup here beside `generate`: in turns, the fastest of `--repeats` counts. On a machine
that others use, `--processor-time` counts what this process computed, on one thread, and not how long it waited for a
core.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import Cache, DynamicCache

from benchctl.data.identity import home_relative
from benchctl.engines.transformers.serving.answering import Answer, Speculation, ToDepth, make_drafter
from benchctl.engines.transformers.serving.assisted import Assistance
from benchctl.engines.transformers.serving.decode import Drafter, Sampler, Step, Task
from benchctl.engines.transformers.serving.decoder import Decoder, Parts
from benchctl.engines.transformers.serving.drafters.self_drafter import SelfDrafter
from benchctl.engines.transformers.serving.loading import Loaded, load
from benchmarks.keep import keep

PROMPT = "Write a Python function that counts how often each value occurs in a list of integers.\n"
REPEATING = "alpha = 1\nbeta = 2\ngamma = 3\ndelta = 4\n" * 6
WHOLE: Parts = frozenset()
Pass = tuple[Parts, int]
"""What is left out, and how many tokens are read at once."""


def answered(
    loaded: Loaded, prompt: list[int], tokens: int, way: Drafter | Assistance | None
) -> tuple[Answer, list[Step]]:
    """Decode one answer; return its steps, too."""
    decoder = Decoder(loaded.model)
    made, steps = Answer(decoder, Task(prompt, tokens, Sampler().chooser(loaded.ends)), way), list[Step]()
    made.run(steps.append)
    return made, steps


def tokens_of(steps: Sequence[Step]) -> list[int]:
    """Return the tokens of an answer."""
    return [token for step in steps for token in step.tokens]


class _Instead(torch.nn.Module):  # type: ignore[misc]
    """Stands where a part of the model is left out."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, hidden_states: torch.Tensor, *_: object, **__: object) -> object:
        if self.kind == "tuple":
            return (hidden_states,)
        if self.kind == "layer":
            return hidden_states
        nothing = torch.zeros_like(hidden_states)
        return (nothing, None) if self.kind == "attention" else nothing


@contextmanager
def _lacking(loaded: Loaded, left_out: Parts) -> Iterator[None]:
    """Have the model run without parts, by other modules in their places: no code of benchctl's runs."""
    names, layers = Decoder(loaded.model).architecture, loaded.model.get_decoder().layers
    known: list[tuple[torch.nn.Module, str, torch.nn.Module]] = []
    for number, part in left_out:
        if part == "layer":
            found = [(layers, str(number), "tuple" if names.in_tuple else "layer")]
        else:
            fields = {"attention": (names.attention,), "recurrent": (names.recurrent or "",), "mlp": names.mlp}[part]
            found = [(layers[number], field, part) for field in fields if hasattr(layers[number], field)]
        for owner, field, kind in found:
            known.append((owner, field, getattr(owner, field)))
            setattr(owner, field, _Instead(kind))
    try:
        yield
    finally:
        for owner, field, module in known:
            setattr(owner, field, module)


class BarePasses:
    """Passes of the model at a context, timed without benchctl."""

    def __init__(self, loaded: Loaded, context: Sequence[int]) -> None:
        self._loaded, self._length = loaded, len(context)
        self.seconds: dict[Pass, list[float]] = {}
        self._cache = DynamicCache(config=loaded.model.config)
        with torch.inference_mode():
            self._read(list(context), 0, self._cache)

    def time(self, passes: Collection[Pass], repeats: int) -> None:
        """Time each pass so many times, in turns."""
        with torch.inference_mode():
            for _ in range(repeats):
                for left_out, tokens in passes:
                    cache = copy.deepcopy(self._cache)
                    with _lacking(self._loaded, left_out):
                        began = time.perf_counter()
                        self._read([1] * tokens, self._length, cache)
                        self.seconds.setdefault((left_out, tokens), []).append(time.perf_counter() - began)

    def of(self, left_out: Parts, tokens: int) -> float:
        """Return the median seconds of a pass."""
        return median(self.seconds[left_out, tokens])

    def _read(self, tokens: list[int], position: int, cache: Cache) -> None:
        places = torch.arange(position, position + len(tokens))[None]
        ids = torch.tensor([tokens])
        self._loaded.model(input_ids=ids, position_ids=places, past_key_values=cache, use_cache=True).logits.argmax(-1)


def _passes(steps: Sequence[Step]) -> Counter[Pass]:
    """Count the passes of an answer after its prompt."""
    passes: Counter[Pass] = Counter()
    for step in steps[1:]:
        passes[WHOLE, step.drafted + 1] += 1
        if step.drafted:
            assert step.left_out is not None, "the draft is not a part of the target"
            passes[step.left_out, 1] += step.drafted
    return passes


def beside_bare(
    loaded: Loaded, prompt: list[int], alone: tuple[Answer, list[Step]], way: Drafter, repeats: int
) -> dict[str, Any]:
    """Answer, and compare the answer's time with that of its passes; `alone`: the plain answer."""
    said = tokens_of(alone[1])
    # Which passes there are is known after an answer. A search goes on in the next, so that some may come after it.
    planned = {(WHOLE, 1), *_passes(answered(loaded, prompt, len(said), way)[1])}
    bare = BarePasses(loaded, [*prompt, *said[: len(said) // 2]])
    bare.time(planned, (repeats + 1) // 2)
    made, steps = answered(loaded, prompt, len(said), way)
    passes = _passes(steps)
    bare.time({*planned, *passes}, (repeats + 1) // 2)
    tally, phases = made.tally.to_json(), made.clock.seconds
    whole, search = _decoding(made), phases["search"]
    single, expected = bare.of(WHOLE, 1), sum(count * bare.of(*kind) for kind, count in passes.items())
    rounds = [step for step in steps[1:] if step.drafted]
    drafting = sum(step.drafted * bare.of(step.left_out or WHOLE, 1) for step in rounds)
    checking = sum(bare.of(WHOLE, step.drafted + 1) for step in rounds)
    return {
        "token_identical": tokens_of(steps) == said,
        "seconds": {name: round(value, 4) for name, value in sorted(phases.items())},
        "bare_step_s": round(single, 5),
        "bare_passes_s": round(expected, 4),
        **{name: tally[name] for name in ("rounds", "drafted", "accepted")},
        "c": round(drafting / tally["drafted"] / single, 3) if rounds else None,
        "v": round(checking / len(rounds) / single, 3) if rounds else None,
        "realised": round(expected / whole, 4),
        "overhead": round(1 - (expected + search) / whole, 4),
        "search_share": round(search / whole, 4),
        "speed_up": round(_decoding(alone[0]) / whole, 3),
    }


def _decoding(answer: Answer) -> float:
    """Return the seconds after the prompt."""
    return sum(answer.clock.seconds.values()) - answer.clock.seconds["prompt"]


def generated(loaded: Loaded, prompt: list[int], tokens: int, **more: int) -> tuple[float, list[int]]:
    """Have transformers decode; return the seconds of the whole answer, and its tokens."""
    ids = torch.tensor([prompt])
    began = time.perf_counter()
    made = loaded.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        repetition_penalty=1.0,
        suppress_tokens=sorted(loaded.ends) or None,
        **more,
    )
    return time.perf_counter() - began, made[0, len(prompt) :].tolist()


def _beside_generate(
    loaded: Loaded, prompt: list[int], options: argparse.Namespace, name: str | None
) -> dict[str, Any]:
    """Time whole answers here and in `generate`, in turns; the fastest of each counts."""
    ours, theirs = [], []
    same = True
    more: dict[str, int] = {"prompt_lookup_num_tokens": options.depth, "max_matching_ngram_size": 2} if name else {}
    for _ in range(options.repeats):
        way = make_drafter(Decoder(loaded.model), Speculation(name, options.depth, {}), loaded) if name else None
        began = time.perf_counter()
        made, steps = answered(loaded, prompt, options.tokens, way)
        ours.append(time.perf_counter() - began)
        seconds, other = generated(loaded, prompt, options.tokens, **more)
        theirs.append(seconds)
        same = same and tokens_of(steps) == other
    return {
        "ours_s": round(min(ours), 4),
        "generate_s": round(min(theirs), 4),
        "ours_over_generate": round(min(theirs) / min(ours), 4),
        "same_tokens": same,
        "accepted": made.tally.to_json()["accepted"],
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--types", default="oracle,self-layerskip,self-knapspec")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2, help="of whole answers")
    parser.add_argument("--passes", type=int, default=10, help="repeats of bare passes")
    parser.add_argument("--keep", help="name of the file below benchmarks/results")
    parser.add_argument("--processor-time", action="store_true", help="on one thread, whatever --threads is")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.processor_time else options.threads)
    if options.processor_time:
        time.perf_counter = time.process_time
    loaded = load(options.model, device="cpu", dtype=options.dtype)
    prompt = loaded.tokenizer(PROMPT)["input_ids"]
    found: dict[str, Any] = {
        "model": home_relative(str(options.model)),
        "dtype": options.dtype,
        "tokens": options.tokens,
        "types": {},
    }
    for name in options.types.split(","):
        if name == "oracle":
            way: Drafter | Assistance = ToDepth(SelfDrafter(Decoder(loaded.model)), options.depth)
        else:
            way = make_drafter(Decoder(loaded.model), Speculation(name, options.depth, {}), loaded)
        assert not isinstance(way, Assistance), f"{name} is transformers' own, without passes that could be counted"
        alone = answered(loaded, prompt, options.tokens, None)
        found["types"][name] = beside_bare(loaded, prompt, alone, way, options.passes)
        print(name, found["types"][name], flush=True)
    found["plain"] = _beside_generate(loaded, prompt, options, None)
    repeating = loaded.tokenizer(REPEATING)["input_ids"]
    found["prompt_lookup"] = _beside_generate(loaded, repeating, options, "prompt-lookup")
    if options.keep:
        keep(options.keep, found)
    else:
        print(found)


if __name__ == "__main__":
    main()
