"""Whether sampled answers come from the target's distribution."""

from __future__ import annotations

from benchctl.offers import Experiment

EXPERIMENT = Experiment(
    commands={"verify-lossless sampling": "benchctl.experiments.sampling.command:verify_sampling"},
    folders=("sampling",),
)
