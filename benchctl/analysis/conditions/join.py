"""The analyses of a run's conditions as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchctl.analysis.conditions.checks import EXPECTED_WHEN_OVERLAPPING, OF_THE_MACHINE, check_levels
from benchctl.analysis.conditions.results import Sweep
from benchctl.analysis.record_checks import Seen
from benchctl.analysis.results import Analysis
from benchctl.analysis.warnings import cautions, in_order


def join(parts: Sequence[Analysis], sweep: Sweep, disturbances: Iterable[Seen]) -> Analysis:
    """Return all conditions' rows after one another; the parts are in the order of `sweep.levels`.

    `disturbances`: what was seen of the machine during the whole run.
    """
    together = {
        name: [row for part in parts for row in getattr(part, name)]
        for name in (
            *("arms", "failed_cells", "verdicts", "speedups", "acceptance", "throughput"),
            *("losslessness", "consistency", "costs"),
        )
    }
    overlapping = {row.arm for row in sweep.levels if row.overlapping}
    warnings = [
        warning
        for part in parts
        for warning in part.warnings
        if warning.id not in OF_THE_MACHINE
        and (warning.id not in EXPECTED_WHEN_OVERLAPPING or part.baseline not in overlapping)
    ]
    warnings += cautions([*disturbances, *check_levels(sweep.levels)])
    distinct = {(one.id, one.where, one.seen): one for one in warnings}
    baseline = next(row.of for row in sweep.levels if row.is_baseline)
    return parts[0].model_copy(
        update={
            **together,
            "baseline": baseline,
            "records": sum(part.records for part in parts),
            "warnings": in_order(distinct.values()),
            "sweep": sweep,
        }
    )
