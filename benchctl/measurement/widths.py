"""The cost of verifying a number of tokens at once, without a draft: for `breakeven TARGET`, `explain` and `tune`.

A prompt ends with one token repeated many times, and a bias lets only this token be generated. So the n-gram look-up
drafts it as often as the answer has room, and the target accepts all of it. An answer of w + 1 tokens is then one token
of the prompt's pass and a round of exactly w. The engine's clock times it, with sampling and saving a recurrent state.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchctl.analysis.round_results import UnitCost
from benchctl.analysis.verify_widths import cliffs_and_falls
from benchctl.engines.base import Rendered, Server
from benchctl.errors import EngineError
from benchctl.measurement.cell import running
from benchctl.measurement.prepare import Prepared, with_arms
from benchctl.measurement.recording import require_attested
from benchctl.measurement.requests import warm_up
from benchctl.prompts.suite import Prompt
from benchctl.recipes.load import stored_recipe
from benchctl.recipes.schema import Arm, Recipe, Sampling
from benchctl.recipes.speculation import Speculation
from benchctl.text import percent

ARM = "free_drafts"
DEEPEST = 32
AT_KERNELS = (1, 2, 3, 4, 7, 8, 11, 12, 15, 16, 31, 32)
"""Depths whose verify is as wide as where engines take another kernel, and next to it: what is timed in seconds."""
_MATCHED = 16
"""Tokens that the look-up matches."""
PASSES = 5
"""Rounds that are timed for each width; the fastest counts."""

MOST_SPREAD = 0.1
"""Largest spread at which the machine counts as idle, so that cliffs are named."""


@dataclass(frozen=True)
class Widths:
    """The measured curve, with the engine and its command."""

    engine: str
    command: Sequence[str]
    curve: list[UnitCost]
    """Costs by width. Width 1 is a step."""
    spread: float
    """How much slower the median round of a width is than its fastest, as a share; the median over all widths."""

    @property
    def steady(self) -> bool:
        """Whether rounds of a width take about the same time, so that cliffs are the engine's."""
        return self.spread <= MOST_SPREAD

    @property
    def statements(self) -> list[str]:
        """A sentence for every width at which the cost jumps or falls; none where other load may be the cause."""
        if not self.steady:
            slower = f"Rounds of a width take {percent(self.spread)} more than the fastest"
            return [f"{slower}: another load has the machine. Measure again when it is idle; no cliff is named."]
        return cliffs_and_falls(self.curve) or [f"No width up to {self.curve[-1].width:g} is a cliff or a fall."]


def with_free_drafts(recipe: Recipe, deepest: int) -> Recipe:
    """Return the recipe with its baseline and an arm whose drafts cost nothing. Raises ValidationError."""
    speculation = Speculation(type="ngram-mod", max=deepest, min=1, size_n=_MATCHED)
    arms = [recipe.arm(recipe.baseline), Arm(name=ARM, speculation=speculation)]
    return stored_recipe({**recipe.model_dump(mode="json"), "arms": [arm.model_dump(mode="json") for arm in arms]})


def measure_at_kernels(prepared: Prepared, show: Callable[[str, int, int], None], most_s: float = inf) -> Widths:
    """Time rounds of the target at the widths of `AT_KERNELS`. Raises EngineError, UsageError."""
    free = with_free_drafts(prepared.recipe, max(AT_KERNELS))
    return measure_widths(with_arms(prepared, free.arms), AT_KERNELS, show, most_s)


def measure_widths(
    prepared: Prepared, depths: Sequence[int], show: Callable[[str, int, int], None], most_s: float = inf
) -> Widths:
    """Time rounds of 1 and of every depth + 1 tokens. `show`: step, how much is done, of how much.

    `most_s`: where all passes would take longer, it ends after the first. Raises EngineError.
    """
    setup, launch = prepared.of_baseline, prepared.launches[ARM]
    widths = [1, *(depth + 1 for depth in depths)]
    timed: defaultdict[int, list[float]] = defaultdict(list)
    with TemporaryDirectory() as folder, running(setup.engine.start(launch, Path(folder) / "log")) as server:
        require_attested(server.attest(None), server)
        warm_up(server, prepared.recipe.sampling)
        prompt = server.render(Prompt(prompt="The same again and again and"))
        if not prompt.token_ids:
            raise EngineError("This engine does not report how it tokenizes.", kind="protocol")
        token = prompt.token_ids[-1]
        repeated = Rendered(prompt.text, (*prompt.token_ids, *[token] * 2 * _MATCHED))
        began = time.perf_counter()
        for number in range(PASSES):
            if number == 1 and PASSES * (time.perf_counter() - began) > most_s:
                break
            show("timing rounds of each width", number, PASSES)
            for width in widths[:: -1 if number % 2 else 1]:
                seconds = _round(server, repeated, prepared.recipe.sampling, token, width)
                if seconds is not None:
                    timed[width].append(seconds)
    if not timed[1]:
        raise EngineError("No step was timed.", kind="protocol")
    step_s = min(timed[1])
    curve = [
        UnitCost(arm=ARM, what="verify" if width > 1 else "target step", width=width, seconds=min(timed[width]),
                 steps=min(timed[width]) / step_s, count=len(timed[width]), source="traced")
        for width in widths if timed[width]
    ]  # fmt: skip
    spread = median(median(times) / min(times) - 1 for times in timed.values())
    return Widths(str(setup.capabilities.version), launch.argv, curve, spread)


def _round(server: Server, prompt: Rendered, sampling: Sampling, token: int, width: int) -> float | None:
    """Return the seconds of a round of so many tokens; `None` where the engine did something else."""
    changed = {"temperature": 0.0, "top_k": 1, "max_tokens": width + 1, "logit_bias": {token: 100.0}}
    done = asyncio.run(server.complete(prompt, sampling.model_copy(update=changed)))
    drafts = done.ledger
    verified = (done.n_predicted, drafts.drafted or 0, drafts.accepted or 0, drafts.rounds or 0)
    as_planned = verified == (width + 1, width - 1, width - 1, int(width > 1))
    return (done.engine_decode_s or done.decode_s) if as_planned else None
