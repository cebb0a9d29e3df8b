"""What a round of self-speculation costs beside bare passes of the model, and what our loop costs beside transformers'.

    python -m benchmarks.self_speculation MODEL [--dtype bfloat16] [--tokens 48] [--types self-layerskip,self-knapspec]

MODEL is a Hugging Face folder. Needs torch and transformers. For every type: is the answer the target's own, and how
long it took beside what its passes take alone. Those are timed in the same run but outside benchctl: `model()` with
transformers' own cache at the middle of the answer, half of the repeats before the answer and half after it, the
medians. c is a draft's pass (of every set of parts that drafted), v the check over the tokens of a round, both over a
plain step. "realised" is their sum over the answer's time, so that whatever our loop adds lowers it; "overhead" is what
is left of the time without the search. Of a draft that is the target itself ("oracle") every token is accepted. The
first step, which reads the prompt, is left out. Of transformers' own types a draft model's passes are counted when they
are called, each as a pass over one token; a look-up has none.

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
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import Cache, DynamicCache

from benchctl.data.identity import home_relative
from benchctl.engines.transformers.serving.answering import Answer, Speculation, make_drafter
from benchctl.engines.transformers.serving.assisted import Assistance, EarlyExit
from benchctl.engines.transformers.serving.decode import Drafter, Sampler, Step, Task
from benchctl.engines.transformers.serving.decoder import Decoder, Parts
from benchctl.engines.transformers.serving.drafters.self_drafter import SelfDrafter
from benchctl.engines.transformers.serving.loading import Loaded, load
from benchctl.models.huggingface.folder import huggingface_folder
from benchctl.models.shipped import bundled_models
from benchmarks.keep import keep

PROMPT = "Write a Python function that counts how often each value occurs in a list of integers.\n"
REPEATING = "alpha = 1\nbeta = 2\ngamma = 3\ndelta = 4\n" * 6
WHOLE: Parts = frozenset()
Pass = tuple[Parts, int]
"""What is left out, and how many tokens are read at once."""


@dataclass
class Answered:
    """An answer that was decoded."""

    made: Answer
    steps: list[Step] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    """Of the draft model, by the end of each step."""

    @property
    def tokens(self) -> list[int]:
        """The tokens of the answer."""
        return [token for step in self.steps for token in step.tokens]

    @property
    def seconds(self) -> Counter[str]:
        """By phase, after the first step."""
        spent: Counter[str] = Counter()
        for line in self.made.trace[1:]:
            spent.update(line["seconds"])
        return spent


def answered(
    loaded: Loaded, prompt: list[int], tokens: int, way: Drafter | Assistance | None, draft: Loaded | None = None
) -> Answered:
    """Decode one answer, and count how often the model of `draft` is called."""
    task = Task(prompt, tokens, Sampler().chooser(loaded.ends))
    answer, called = Answered(Answer(Decoder(loaded.model), task, way, traced=True)), list[object]()
    handle = draft.model.register_forward_hook(lambda *_: called.append(None)) if draft else None

    def on_step(step: Step) -> None:
        answer.steps.append(step)
        answer.calls.append(len(called))

    answer.made.run(on_step)
    if handle is not None:
        handle.remove()
    return answer


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
        zeros = torch.zeros_like(hidden_states)
        return (zeros, None) if self.kind == "attention" else zeros


@contextmanager
def _lacking(loaded: Loaded, left_out: Parts) -> Iterator[None]:
    """Have the model run without parts, by other modules in their places: no code of benchctl's runs."""
    names, layers = Decoder(loaded.model).architecture, loaded.model.get_decoder().layers
    modules: list[tuple[torch.nn.Module, str, torch.nn.Module]] = []
    for number, part in left_out:
        if part == "layer":
            owners = [(layers, str(number), "tuple" if names.in_tuple else "layer")]
        else:
            fields = getattr(names, part)
            owners = [(layers[number], attribute, part) for attribute in fields if hasattr(layers[number], attribute)]
        for owner, attribute, kind in owners:
            modules.append((owner, attribute, getattr(owner, attribute)))
            setattr(owner, attribute, _Instead(kind))
    try:
        yield
    finally:
        for owner, attribute, module in modules:
            setattr(owner, attribute, module)


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


def _passes(steps: Sequence[Step], drafting: Parts | None) -> tuple[Counter[Pass], Counter[Pass]]:
    """Count the target's passes of an answer after its prompt: its own, and those of drafts by a part of it.

    `drafting`: what is left out where the steps do not say.
    """
    target_passes, drafts = Counter[Pass](), Counter[Pass]()
    for step in steps[1:]:
        target_passes[WHOLE, step.drafted + 1] += 1
        left_out = drafting if step.left_out is None else step.left_out
        if step.drafted and left_out is not None:
            drafts[left_out, 1] += step.drafted
    return target_passes, drafts


def beside_bare(
    loaded: Loaded,
    prompt: list[int],
    plain: Answered,
    way: Drafter | Assistance,
    repeats: int,
    draft: Loaded | None = None,
) -> dict[str, Any]:
    """Answer, and compare the answer's time with that of its passes; `alone`: the plain answer."""
    tokens = plain.tokens
    layers = range(loaded.model.config.get_text_config().num_hidden_layers)
    exits: Parts | None = None
    if isinstance(way, EarlyExit):
        exits = frozenset((number, "layer") for number in layers[way.exit :])
    # Which passes there are is known after an answer. A search goes on in the next, so that some may come after it.
    planned = {(WHOLE, 1)}.union(*_passes(answered(loaded, prompt, len(tokens), way).steps, exits))
    context = [*prompt, *tokens[: len(tokens) // 2]]
    bare, of_draft = BarePasses(loaded, context), BarePasses(draft, [1] * len(context)) if draft else None

    def time_passes(passes: Collection[Pass]) -> None:
        bare.time(passes, (repeats + 1) // 2)
        if of_draft is not None:
            of_draft.time([(WHOLE, 1)], (repeats + 1) // 2)

    time_passes(planned)
    speculated = answered(loaded, prompt, len(tokens), way, draft)
    target_passes, drafts = _passes(speculated.steps, exits)
    time_passes({*planned, *target_passes, *drafts})
    phases = speculated.seconds
    total_s, search, single = phases.total(), phases["search"], bare.of(WHOLE, 1)
    rounds = [step for step in speculated.steps[1:] if step.drafted]
    drafted, accepted = (sum(getattr(step, name) for step in rounds) for name in ("drafted", "accepted"))
    drafting = sum(number * bare.of(*kind) for kind, number in drafts.items())
    if of_draft is not None:
        drafting += (speculated.calls[-1] - speculated.calls[0]) * of_draft.of(WHOLE, 1)
    expected = drafting + sum(number * bare.of(*kind) for kind, number in target_passes.items())
    checking = sum(bare.of(WHOLE, step.drafted + 1) for step in rounds)
    return {
        "token_identical": speculated.tokens == tokens,
        "seconds": {name: round(value, 4) for name, value in sorted(phases.items())},
        "bare_step_s": round(single, 5),
        "bare_passes_s": round(expected, 4),
        "rounds": len(rounds),
        "drafted": drafted,
        "accepted": accepted,
        "c": round(drafting / drafted / single, 3) if drafted else None,
        "v": round(checking / len(rounds) / single, 3) if rounds else None,
        "realised": round(expected / total_s, 4),
        "overhead": round(1 - (expected + search) / total_s, 4),
        "search_share": round(search / total_s, 4),
        "speed_up": round(plain.seconds.total() / total_s, 3),
    }


def generated(loaded: Loaded, prompt: list[int], tokens: int, **options: int) -> tuple[float, list[int]]:
    """Have transformers decode; return the seconds of the whole answer, and its tokens."""
    ids = torch.tensor([prompt])
    began = time.perf_counter()
    output = loaded.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        repetition_penalty=1.0,
        suppress_tokens=sorted(loaded.ends) or None,
        **options,
    )
    return time.perf_counter() - began, output[0, len(prompt) :].tolist()


def _beside_generate(
    loaded: Loaded, prompt: list[int], options: argparse.Namespace, name: str | None
) -> dict[str, Any]:
    """Time whole answers here and in `generate`, in turns; the fastest of each counts."""
    ours, theirs = [], []
    same = True
    keywords: dict[str, int] = {"prompt_lookup_num_tokens": options.depth, "max_matching_ngram_size": 2} if name else {}
    for _ in range(options.repeats):
        way = make_drafter(Decoder(loaded.model), Speculation(name, options.depth, {}), loaded) if name else None
        began = time.perf_counter()
        speculated = answered(loaded, prompt, options.tokens, way)
        ours.append(time.perf_counter() - began)
        seconds, generated_ids = generated(loaded, prompt, options.tokens, **keywords)
        theirs.append(seconds)
        same = same and speculated.tokens == generated_ids
    return {
        "ours_s": round(min(ours), 4),
        "generate_s": round(min(theirs), 4),
        "ours_over_generate": round(min(theirs) / min(ours), 4),
        "same_tokens": same,
        "accepted": sum(step.accepted for step in speculated.steps),
    }


def _draft_folder(name: str, options: argparse.Namespace) -> Path:
    """Return the folder of a draft model: of the same tokenizer, by default the target itself, or of another."""
    if name == "assisted":
        return Path(options.draft or options.model)
    return huggingface_folder(next(model.path for model in bundled_models() if model.name == "tiny-transformer"))


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
    parser.add_argument("--draft", type=Path, help="of `assisted`; left out: MODEL itself")
    parser.add_argument("--keep", help="name of the file below benchmarks/results")
    parser.add_argument("--processor-time", action="store_true", help="on one thread, whatever --threads is")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.processor_time else options.threads)
    if options.processor_time:
        time.perf_counter = time.process_time
    loaded = load(options.model, device="cpu", dtype=options.dtype)
    prompt = loaded.tokenizer(PROMPT)["input_ids"]
    results: dict[str, Any] = {
        "model": home_relative(str(options.model)),
        "dtype": options.dtype,
        "tokens": options.tokens,
        "types": {},
    }
    repeating = loaded.tokenizer(REPEATING)["input_ids"]
    for name in options.types.split(","):
        draft = None
        if name in ("assisted", "assisted-universal"):
            draft = load(_draft_folder(name, options), device="cpu", dtype=options.dtype)
        if name == "oracle":
            way: Drafter | Assistance = SelfDrafter(Decoder(loaded.model))
            way.depth = options.depth
        else:
            way = make_drafter(Decoder(loaded.model), Speculation(name, options.depth, {}), loaded, draft)
        prompt_of_arm = repeating if name == "prompt-lookup" else prompt
        plain = answered(loaded, prompt_of_arm, options.tokens, None)
        results["types"][name] = beside_bare(loaded, prompt_of_arm, plain, way, options.passes, draft)
        print(name, results["types"][name], flush=True)
        if options.keep:
            keep(options.keep, results)
    results["plain"] = _beside_generate(loaded, prompt, options, None)
    results["prompt_lookup"] = _beside_generate(loaded, repeating, options, "prompt-lookup")
    if options.keep:
        keep(options.keep, results)
    else:
        print(results)


if __name__ == "__main__":
    main()
