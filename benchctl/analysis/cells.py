"""The cells of a run: which failed, the attestations of an arm, and its verify width."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from benchctl.data.cell import AttestationRecord, Cell
from benchctl.data.manifest import ArmIdentity, Manifest

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.data.record import Record


def identity_of(manifest: Manifest | None, arm: str) -> ArmIdentity | None:
    """Return what a manifest says of an arm; `None` where it names no such arm, or there is none."""
    return next((identity for identity in manifest.arms if identity.name == arm), None) if manifest else None


def latest_cells(manifest: Manifest | None) -> list[Cell]:
    """Return the attempt of every cell that counts, in the order of the run."""
    return list({(cell.block, cell.arm): cell for cell in manifest.cells}.values()) if manifest else []


def failed_cells(frame: Frame) -> list[tuple[str, str, str]]:
    """Return (`block 2, spec_d4`, reason, log) for every cell that failed or did not run as requested."""
    found = []
    for cell in latest_cells(frame.manifest):
        name, log = f"block {cell.block + 1}, {cell.arm}", cell.log
        if cell.attestation and cell.attestation.state == "failed":
            found.append((name, cell.attestation.reason or "the attestation failed", log))
        elif cell.status != "finished":
            found.append((name, cell.error.message if cell.error else cell.status, log))
    return found


def speculates(frame: Frame, arm: int) -> bool:
    """Whether an arm is set to speculate by the recipe, or has drafted: then it is not the target alone."""
    return bool(speculation_of(frame, frame.arms[arm])) or any(frame.records[row].draft_n for row in frame.rows(arm))


def speculation_of(frame: Frame, arm: str) -> dict[str, Any]:
    """Return an arm's speculation as its recipe has it; empty for the target alone, and where nothing is recorded."""
    identity = identity_of(frame.manifest, arm)
    return (identity.speculation if identity else None) or {}


def attestations(frame: Frame, arm: str) -> list[AttestationRecord]:
    """Return the attestations of an arm's cells, failed ones first, then unverified, active, idle, off.

    Only a finished cell can be called idle: one that crashed might still have drafted.
    """
    order = ("failed", "unverified", "active", "idle", "off")
    found = [
        cell.attestation
        for cell in latest_cells(frame.manifest)
        if cell.arm == arm and cell.attestation and (cell.status == "finished" or cell.attestation.state != "idle")
    ]
    return sorted(found, key=lambda attestation: order.index(attestation.state))


def states(frame: Frame, arm: str) -> list[str]:
    """Return the states of an arm's attestations, the most serious first."""
    return [attestation.state for attestation in attestations(frame, arm)]


def verify_width(manifest: Manifest | None, record: Record) -> int | None:
    """Return how many tokens the rounds of an answer verified at once, the one before the draft included.

    The recipe's depth, or the mean draft that the engine reports where that is more, as of a tree of drafts; 1 for an
    answer without any draft.
    """
    if record.draft_n == 0:
        return 1
    identity = identity_of(manifest, record.label)
    depth = (identity.speculation or {}).get("max") if identity else None
    known = [depth + 1] if isinstance(depth, int) else []
    if record.draft_n and record.rounds:
        known.append(1 + math.ceil(record.draft_n / record.rounds))
    return max(known, default=None)
