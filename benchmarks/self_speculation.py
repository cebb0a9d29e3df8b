"""What a round of self-speculation costs beside its passes, and what our loop costs beside transformers' own.

    python -m benchmarks.self_speculation MODEL [--dtype bfloat16] [--tokens 48] [--types self-layerskip,self-knapspec]

MODEL is a Hugging Face folder. Needs torch and transformers. For every type: is the answer the target's own, the phases
of the answer, the round's overhead (all that is neither a draft's pass nor a target's), the search's share, and the
speed-up that was realised beside E / (v + kc) and E / (1 + kc) from the same answer, with c the cost of a draft's pass
and v that of the check over k + 1 tokens, both over a plain step. Of a draft that is the target itself ("oracle") every
token is accepted. Then plain decoding and prompt-lookup here beside `generate`:
in turns, the fastest of `--repeats` counts. On a machine that others use, shares mean more than seconds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from benchctl.data.identity import home_relative
from benchctl.engines.transformers.methods import METHODS
from benchctl.engines.transformers.serving.answering import Answer, Speculation, ToDepth, make_drafter
from benchctl.engines.transformers.serving.assisted import Assistance
from benchctl.engines.transformers.serving.choose import Sampler
from benchctl.engines.transformers.serving.decode import Drafter, Step, Task
from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.drafters.self_drafter import SelfDrafter
from benchctl.engines.transformers.serving.loading import Loaded, load
from benchmarks.keep import keep

PROMPT = "Write a Python function that counts how often each value occurs in a list of integers.\n"
REPEATING = "alpha = 1\nbeta = 2\ngamma = 3\ndelta = 4\n" * 6


def answered(
    loaded: Loaded, prompt: list[int], tokens: int, way: Drafter | Assistance | None
) -> tuple[Answer, list[int]]:
    """Decode one answer."""
    decoder = Decoder(loaded.model)
    made, steps = Answer(decoder, Task(prompt, tokens, Sampler().chooser(loaded.ends)), way), list[Step]()
    made.run(steps.append)
    return made, [token for step in steps for token in step.tokens]


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


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--types", default="oracle,self-layerskip,self-knapspec")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--keep", help="name of the file below benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    loaded = load(options.model, device="cpu", dtype=options.dtype)
    prompt = loaded.tokenizer(PROMPT)["input_ids"]
    plain, alone = answered(loaded, prompt, options.tokens, None)
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
            assert name in METHODS
            way = make_drafter(Decoder(loaded.model), Speculation(name, options.depth, {}), loaded)
        made, tokens = answered(loaded, prompt, options.tokens, way)
        found["types"][name] = {"token_identical": tokens == alone, **_round(plain, made, options.tokens)}
        print(name, found["types"][name], flush=True)
    found["plain"] = _beside_generate(loaded, prompt, options, None)
    repeating = loaded.tokenizer(REPEATING)["input_ids"]
    found["prompt_lookup"] = _beside_generate(loaded, repeating, options, "prompt-lookup")
    if options.keep:
        keep(options.keep, found)
    else:
        print(found)


def _round(plain: Answer, made: Answer, tokens: int) -> dict[str, Any]:
    """Return what an answer's phases say."""
    tally: dict[str, Any] = made.tally.to_json()
    phases = made.clock.seconds
    whole = sum(phases.values()) - phases["prompt"]
    step = plain.clock.seconds["plain"] / (tokens - 1)
    rounds, drafted = tally["rounds"], tally["drafted"]
    described: dict[str, Any] = {"seconds": {name: round(value, 4) for name, value in sorted(phases.items())}}
    if not rounds:
        return {**described, "rounds": 0}
    passes = phases["draft"] + phases["verify"] + phases["plain"]
    c, v, k = phases["draft"] / drafted / step, phases["verify"] / rounds / step, drafted / rounds
    brought = 1 + tally["accepted"] / rounds
    return {
        **described,
        "rounds": rounds,
        "drafted": drafted,
        "accepted": tally["accepted"],
        "c": round(c, 3),
        "v": round(v, 3),
        "overhead_of_rounds": round((whole - passes - phases["search"]) / (whole - phases["search"]), 4),
        "search_share": round(phases["search"] / whole, 4),
        "speed_up": round((tokens - 1) * step / whole, 3),
        "predicted_v": round(brought / (v + k * c), 3),
        "predicted_1": round(brought / (1 + k * c), 3),
        "realised": round(passes / whole, 4),
    }


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
        made, tokens = answered(loaded, prompt, options.tokens, way)
        ours.append(time.perf_counter() - began)
        seconds, other = generated(loaded, prompt, options.tokens, **more)
        theirs.append(seconds)
        same = same and tokens == other
    return {
        "ours_s": round(min(ours), 4),
        "generate_s": round(min(theirs), 4),
        "ours_over_generate": round(min(theirs) / min(ours), 4),
        "same_tokens": same,
        "accepted": made.tally.to_json()["accepted"],
    }


if __name__ == "__main__":
    main()
