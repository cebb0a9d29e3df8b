"""Which tensors of a model must not be quantized."""

from __future__ import annotations

from benchctl.offers import Experiment

EXPERIMENT = Experiment(
    commands={"diagnose isolate": "benchctl.experiments.isolate.command:isolate"},
    study="benchctl.experiments.isolate.table:tensors_beside",
)
