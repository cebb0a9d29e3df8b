"""Why (not) faster? The parts of a round, the acceptance that a depth needs, and predictions."""

from __future__ import annotations

from benchctl.offers import Experiment

_HERE = "benchctl.experiments.explain"

EXPERIMENT = Experiment(
    commands={
        "explain": f"{_HERE}.command:explain",
        "explain --measure": f"{_HERE}.breakeven:breakeven",
        "explain --predict": f"{_HERE}.predict:predict",
    },
    breakeven=f"{_HERE}.curve:of_run",
    section=f"{_HERE}.section:addition",
)
