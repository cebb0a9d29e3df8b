"""Does another's run hold here? Its work is measured and verified on this machine, and its claims are compared."""

from __future__ import annotations

from benchctl.offers import Experiment

EXPERIMENT = Experiment(commands={"compare --replicate": "benchctl.experiments.replicate.command:replicate"})
