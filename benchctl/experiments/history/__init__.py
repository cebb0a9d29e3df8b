"""Many runs of a workload over engine builds and dates, as a table, as a site, and runs that other programs made."""

from __future__ import annotations

from benchctl.offers import Experiment

_COMMANDS = {"history": "history", "site": "site", "import": "import_claims"}
EXPERIMENT = Experiment(
    commands={f"runs {word}": f"benchctl.experiments.history.command:{name}" for word, name in _COMMANDS.items()}
)
