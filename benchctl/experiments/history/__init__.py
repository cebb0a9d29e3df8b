"""Many runs of one workload over engine builds and dates, as a table, as a site, and runs that other programs made."""

from __future__ import annotations

from benchctl.offers import Experiment

EXPERIMENT = Experiment(commands={"runs history": "benchctl.experiments.history.command:history"})
