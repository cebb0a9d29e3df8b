"""Many runs of one workload over engine builds and dates, as a table, as a site, and runs that other programs made."""

from __future__ import annotations

from benchctl.offers import Experiment

EXPERIMENT = Experiment(
    commands={f"runs {word}": f"benchctl.experiments.history.command:{word}" for word in ("history", "site")}
)
