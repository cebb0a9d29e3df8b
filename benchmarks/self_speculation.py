"""What a round of self-speculation costs beside its passes, and what plain decoding costs beside transformers' own.

    python -m benchmarks.self_speculation MODEL [--type self-layerskip] [--depth 4] [--tokens 32] [--dtype float32]

MODEL is a Hugging Face folder. Needs torch and transformers. Prints the phases of an answer, the round's overhead (all
that is neither a draft's pass nor the check), the speed-up that was realised beside E / (v + kc) from the same answer,
with c the cost of a draft's pass, v that of the check over k + 1 tokens, both over a plain step, and plain decoding in
our loop beside `generate`. On a machine that others use, shares mean more than seconds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from benchctl.engines.transformers.serving.answering import Answer, Speculation, make_drafter
from benchctl.engines.transformers.serving.choose import Sampler
from benchctl.engines.transformers.serving.decode import Step, Task
from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.loading import Loaded, load

PROMPT = "Write a Python function that counts how often each value occurs in a list of integers.\n"


def answered(
    loaded: Loaded, prompt: list[int], tokens: int, speculation: Speculation | None
) -> tuple[Answer, list[int]]:
    """Decode one answer."""
    decoder = Decoder(loaded.model)
    way = make_drafter(decoder, speculation, loaded) if speculation else None
    made, steps = Answer(decoder, Task(prompt, tokens, Sampler().chooser(loaded.ends)), way), list[Step]()
    made.run(steps.append)
    return made, [token for step in steps for token in step.tokens]


def generated(loaded: Loaded, prompt: list[int], tokens: int) -> tuple[float, list[int]]:
    """Have transformers decode plainly; return the seconds of all tokens but the first, and the tokens."""

    def run(count: int) -> tuple[float, list[int]]:
        ids = torch.tensor([prompt])
        began = time.perf_counter()
        made = loaded.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            repetition_penalty=1.0,
            suppress_tokens=sorted(loaded.ends) or None,
        )
        return time.perf_counter() - began, made[0, len(prompt) :].tolist()

    first, _ = run(1)
    whole, made = run(tokens)
    return whole - first, made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--type", default="self-layerskip")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    loaded = load(options.model, device="cpu", dtype=options.dtype)
    prompt = loaded.tokenizer(PROMPT)["input_ids"]
    plain, alone = answered(loaded, prompt, options.tokens, None)
    made, tokens = answered(loaded, prompt, options.tokens, Speculation(options.type, options.depth, {}))
    seconds, theirs = generated(loaded, prompt, options.tokens)
    print(f"token-identical to the target alone: {tokens == alone}; generate says the same: {theirs == alone}")
    report(plain, made, options.tokens, seconds)


def report(plain: Answer, made: Answer, tokens: int, generate_s: float) -> None:
    """Print what was measured."""
    told: dict[str, Any] = made.tally.to_json()
    phases = made.clock.seconds
    decode = sum(phases.values()) - phases["prompt"]
    step = plain.clock.seconds["plain"] / (tokens - 1)
    overhead = (decode - phases["draft"] - phases["verify"] - phases["plain"]) / decode
    print("seconds by phase: " + ", ".join(f"{name} {value:.3f}" for name, value in sorted(phases.items())))
    if rounds := told["rounds"]:
        c, v = phases["draft"] / told["drafted"] / step, phases["verify"] / rounds / step
        predicted = rounds * (v + told["drafted"] / rounds * c) * step + phases["plain"]
        print(f"{told['accepted']} of {told['drafted']} drafts accepted in {rounds} rounds; c {c:.2f}, v {v:.2f}")
        print(f"speed-up {(tokens - 1) * step / decode:.2f}x, {predicted / decode:.0%} of what c and v make of it")
    else:
        print("nothing was drafted")
    print(f"overhead of the rounds: {overhead:.2%}")
    ours = sum(plain.clock.seconds.values()) - plain.clock.seconds["prompt"]
    print(f"plain decoding: {(tokens - 1) / ours:.2f} tok/s here, {(tokens - 1) / generate_s:.2f} tok/s in generate")


if __name__ == "__main__":
    main()
