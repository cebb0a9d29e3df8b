"""What a check of an arm's sampling found, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchctl.analysis.sampling.permutation import END, SHARPNESS, PromptSamples, prefix_name, score
from benchctl.analysis.sampling.results import SamplingPower, SamplingTest

_TOLD = (2, 4, 8)
"""Prefix lengths whose power a sentence tells; the table has all."""


def would_have_seen(power: SamplingPower) -> str:
    """Say in a clause what a check would have found nine times in ten."""
    known = {length: shift for length, shift in power.shifts.items() if shift is not None}
    told = {length: shift for length, shift in known.items() if length in _TOLD} or known
    shifts = ", ".join(f"{shift:.2f} in the {prefix_name(length)}" for length, shift in told.items())
    sharp = "" if power.temperature is None else f" or a temperature wrong by {100 * power.temperature:.0f} %"
    return f"would have seen, nine times in ten, a shift of total variation of {shifts}{',' if sharp else ''}{sharp}"


def difference(seen: Sequence[SamplingTest], samples: Sequence[PromptSamples]) -> str:
    """Say what differs: every significant test, and what the clearest one shows."""
    clearest = min(seen, key=lambda test: test.p)
    tests = ", ".join(f"{test.name} (p = {test.adjusted:.2g})" for test in seen)
    said = f"The arm samples otherwise than the target, by {tests}, p corrected for the number of tests."
    names = {test.name for test in seen}
    if prefix_name(1) in names:
        return f"{said} The first token, which is never speculated, differs already: another sampler or prompt."
    if SHARPNESS in names:
        said += f" It chooses {_tendency(samples)} tokens than the target."
    if clearest.name.startswith("first"):
        said += f" {_most_shifted(int(clearest.name.split()[1]), samples)}"
    return said


def _tendency(samples: Sequence[PromptSamples]) -> str:
    scores = [score(np.concatenate([one.baseline, one.arm]))[len(one.baseline) :].sum() for one in samples]
    return "likelier" if sum(scores) > 0 else "less likely"


def _most_shifted(length: int, samples: Sequence[PromptSamples]) -> str:
    """Name the prefix whose share differs most."""
    largest, said = 0.0, ""
    for one in samples:
        for prefix in np.unique(np.concatenate([one.baseline, one.arm])[:, :length], axis=0):
            theirs, ours = ((rows[:, :length] == prefix).all(axis=1).mean() for rows in (one.baseline, one.arm))
            if abs(ours - theirs) > largest:
                largest = abs(ours - theirs)
                ids = " ".join(str(token) for token in prefix.tolist() if token != END)
                said = (
                    f"Most of all, {100 * ours:.0f} % of its answers to a prompt begin with the tokens {ids}, "
                    f"and {100 * theirs:.0f} % of the target's."
                )
    return said
