"""What others can check of a run: a certificate of its verdict."""

from __future__ import annotations

from benchctl.offers import Experiment

EXPERIMENT = Experiment(commands={"runs certify": "benchctl.experiments.gate.command:certify"})
