"""The second reading notices when an arm is given another arm's baseline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchctl.data.manifest import Manifest
from benchctl.recipes.groups import ComparedArm
from tests.oracle.render import kept, rendered

ARM = "spec_d2-d_q4_k_m-kv_f16"
OTHER = "baseline-kv_q8_0"


@pytest.mark.parametrize(("group", "checks"), [(True, {"json", "tables", "sentences"}), (False, {"answers"})])
def test_another_baseline(group: bool, checks: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the whole group exchanged, every number; with the name alone, the answers beside each other."""
    right = Manifest.compared

    def wrong(manifest: Manifest, *args: str | None) -> dict[str, ComparedArm]:
        arms = dict(right(manifest, *args))
        if OTHER in arms and ARM in arms:
            group_key = arms[OTHER if group else ARM].group
            arms[ARM] = replace(arms[ARM], baseline=OTHER, group=group_key)
        return arms

    monkeypatch.setattr(Manifest, "compared", wrong)
    complaints = rendered(kept("qwen2.5-coder-axes/"), tmp_path).complaints()
    assert {complaint.split("]")[0].strip("[") for complaint in complaints} >= checks
    assert [complaint for complaint in complaints if ARM in complaint]


def test_a_forgotten_second_cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right = Manifest.compared

    def wrong(manifest: Manifest, *args: str | None) -> dict[str, ComparedArm]:
        return {name: replace(arm, again=None) for name, arm in right(manifest, *args).items()}

    monkeypatch.setattr(Manifest, "compared", wrong)
    complaints = rendered(kept("self-speculation-control/20261122-1626"), tmp_path).complaints()
    for quantity in ("end_to_end", "pooled", "step_s"):
        assert [complaint for complaint in complaints if quantity in complaint], quantity
