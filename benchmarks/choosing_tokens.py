"""How long choosing the tokens of a round takes, beside its passes: greedily, and above temperature 0.

    python -m benchmarks.choosing_tokens [--vocabulary 151936] [--depth 4]

Needs torch. Random logits with some likely tokens, and a draft whose distributions are the target's. The median of
processor time on one thread, in milliseconds: what is computed, not how long this process waited for a core.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

from benchctl.engines.transformers.serving.decode import Sampler
from benchmarks.keep import keep

SAMPLERS = {
    "greedy": Sampler(),
    "temperature": Sampler(0.8),
    "top_k_20": Sampler(0.8, top_k=20),
    "top_p_0.95": Sampler(0.8, top_p=0.95),
}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(options.depth + 1, options.vocabulary, generator=generator) * 2.5
    logits[:, :200] += torch.randn(options.depth + 1, 200, generator=generator) * 4 + 4
    results = {}
    for name, sampler in SAMPLERS.items():
        chooser, seconds = sampler.chooser(), []
        for _ in range(options.repeats):
            began = time.process_time()
            drafted = [chooser.draft(logits[position : position + 1]) for position in range(options.depth)]
            chooser.verify([token for token, _ in drafted], [q for _, q in drafted], logits)
            seconds.append(time.process_time() - began)
        results[name] = round(1e3 * median(seconds), 2)
    keep("choosing_tokens", {"vocabulary": options.vocabulary, "depth": options.depth, "ms_a_round": results})


if __name__ == "__main__":
    main()
