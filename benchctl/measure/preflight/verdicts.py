"""What the answers to the health probes say of a target: findings, or sentences of what was looked at.

The thresholds were measured on the bundled models, on real ones, and on bundled ones that were damaged on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchctl.analysis.degenerate import degeneration
from benchctl.analysis.isolation.damage import DAMAGED
from benchctl.data.manifest import PreflightProbe, PreflightRecord
from benchctl.data.record import Record
from benchctl.measure.preflight.probes import ENOUGH, MIN_PROBES, TOP, Agreement, ProbeAnswer, confidence, is_blank

LINE_BREAKS = ("newlines/", "empty_lines/")
FLAWED_SHARE = 2 / 3
"""Sound models of half a billion parameters loop on two probes in five: only well beyond that it says something."""
UNSURE = -2.0
"""Mean log-probability, in nats, of the model's own best token. Measured on the probes: the bundled models, of 1 M and
4 M parameters, reach -1.1 and -1.5, one of half a billion -0.5; the bundled target with all tensors at tq2_0, whose
output is word salad, -2.6; from 64 tokens on these figures hardly move."""
EXPECTED = 0.45
"""Share of the probes' own tokens among the 64 likeliest that the model expects: the bundled models reach 0.60, small
as they are; the target with one tensor family scaled, shuffled or zeroed 0.19 to 0.37."""


def check_answers(found: Sequence[ProbeAnswer], record: PreflightRecord) -> None:
    """Say whether the answers are those of a sound model."""
    flaws: dict[str, str] = {}
    for answer in found:
        said = Record(
            label="preflight", task="health", prompt_idx=0, rep=0, content=answer.text, token_ids=answer.tokens
        )
        if flaw := degeneration(said):
            flaws[answer.name] = flaw
        probe = PreflightProbe(
            name=answer.name, text=answer.text, tokens=len(answer.tokens), flaw=flaws.get(answer.name)
        )
        record.probes.append(probe)
    at_breaks = [answer for answer in found if answer.name.startswith(LINE_BREAKS)]
    named = "; ".join(f"{name} {flaw}" for name, flaw in list(flaws.items())[:4])
    if len(at_breaks) > 1 and all(map(is_blank, at_breaks)):
        seen = f"It says nothing to any of {len(at_breaks)} prompts that end in line breaks: {named}."
        record.find("degenerate-target", "models.target", seen)
    elif any("reserved or byte tokens" in flaw or "broken UTF-8" in flaw for flaw in flaws.values()) or (
        len(found) >= MIN_PROBES and len(flaws) > FLAWED_SHARE * len(found)
    ):
        seen = f"{len(flaws)} of {len(found)} health probes are answered degenerately: {named}."
        record.find("degenerate-target", "models.target", seen)
    else:
        record.checked.append(f"The target answered {len(found)} health probes, {len(flaws)} of them degenerately.")
    mean, places = confidence(found)
    seen = f"On average it gives its own best next token a probability of {math.exp(mean):.0%}, over {places} tokens"
    if places >= ENOUGH and mean < UNSURE:
        record.find("unsure-target", "models.target", f"{seen}; a sound model is far surer of what it says.")
    else:
        record.checked.append(f"{seen}.")


def check_reading(hits: int, places: int, record: PreflightRecord) -> None:
    """Say whether the model expects what it reads."""
    if places < ENOUGH:
        record.checked.append(f"Whether it expects what it reads was not judged: {places} tokens are too few.")
        return
    seen = f"Of {places} tokens of the probes it expects {hits / places:.0%} among its {TOP} likeliest"
    if hits < EXPECTED * places:
        record.find("unsure-target", "models.target", f"{seen}; small sound models reach 60%.")
    else:
        record.checked.append(f"{seen}.")


def check_agreement(compared: Agreement | None, record: PreflightRecord) -> None:
    """Say whether the quantized target still says what its source says."""
    if compared is None or compared.places < ENOUGH:
        places = compared.places if compared else 0
        record.checked.append(f"The unquantized target was asked at {places} places, too few to compare.")
        return
    seen = (
        f"The quantized target and its source expect the same next token at {compared.same} of {compared.places} "
        f"places of the health probes; they diverge by {compared.divergence:.2f} nats"
    )
    if compared.divergence > DAMAGED:
        record.find("quantization-damage", "models.target", f"{seen}, more than {DAMAGED:g}.")
    else:
        record.checked.append(f"{seen}.")
