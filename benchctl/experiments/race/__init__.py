"""A prompt answered with and without speculation, in turn."""

from __future__ import annotations

from benchctl.offers import Experiment

EXPERIMENT = Experiment(commands={"report race": "benchctl.experiments.race.command:race"})
