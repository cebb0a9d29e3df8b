"""What a draft is worth before it is built or deployed, from the token probabilities of draft and target."""

from __future__ import annotations

from benchctl.offers import Experiment

EXPERIMENT = Experiment(commands={"diagnose": "benchctl.experiments.diagnose.command:diagnose"}, folders=("diagnosis",))
