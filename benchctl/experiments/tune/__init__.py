"""Which setting is fastest? A search within a budget, by successive halving."""

from __future__ import annotations

from benchctl.offers import Experiment

EXPERIMENT = Experiment(
    commands={"tune": "benchctl.experiments.tune.command:tune"}, search="benchctl.experiments.tune.halving:Halving"
)
