"""One prompt with and without speculation, side by side."""

from __future__ import annotations

from benchctl.offers import Experiment

EXPERIMENT = Experiment(commands={"report race": "benchctl.experiments.race.command:race"})
