"""Rows as a reader gets them, and the rule that calls them broken."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchctl.data.manifest import ModelIdentity, PreflightFinding, PreflightProbe
from benchctl.engines.quantizing import Divergence
from benchctl.experiments.isolate.search import LEAST, MOST, damage, limit_of, usual
from benchctl.experiments.isolate.stored import Family, Isolation, Measurement
from benchctl.experiments.isolate.table import rows


def measured(keep: Sequence[str] | None, divergence: float | None = 0.0, finding: str | None = None) -> Measurement:
    return Measurement(
        kept=None if keep is None else list(keep),
        severity=Divergence(
            divergence=divergence,
            divergence_error=0.0,
            worst=divergence,
            same_top=1.0,
            same_top_error=0.0,
            perplexity=2.0,
            perplexity_error=0.0,
        ),
        findings=[PreflightFinding(id=finding, where="models.target", seen="…")] * 2 if finding else [],
        probes=[PreflightProbe(name="newlines/0", text="", tokens=0, flaw="is empty")],
        bytes=1,
        wall_s=1.0,
    )


def isolation(*measurements: Measurement) -> Isolation:
    families = [
        Family(name=name, tensors=2, parameters=1, keep="bf16", layers=[f"blk.0.{name}", f"blk.1.{name}"])
        for name in ("ffn_down", "ssm_out", "attn_q")
    ]
    return Isolation(
        benchctl_version="0",
        created_at="2026-01-01",
        recipe_name="r",
        key="0" * 64,
        asked={},
        source=ModelIdentity(source="m.gguf", path="m.gguf", files=[]),
        type="q8_0",
        families=families,
        measurements=list(measurements),
    )


def test_rows_stand_in_the_order_of_the_question_and_name_their_roles() -> None:
    result = rows(
        isolation(
            measured(["blk.0.ssm_out"]),
            measured(["attn_q", "blk.0.ssm_out", "ffn_down"]),
            measured(["attn_q", "ffn_down"], 0.5),
            measured(["ssm_out"], 0.001),
            measured([], 0.6),
            measured(None),
            measured(["attn_q"], 0.7),
        ),
        LEAST,
    )
    assert [(row.tensors, row.role, bool(row.damage)) for row in result] == [
        ("unquantized", None, False),
        ("all q8_0", None, True),
        ("kept: ssm_out", "recurrent output", False),
        ("kept: attn_q", "attention query", True),
        ("kept: blk.0.ssm_out", "recurrent output", False),
        ("only: ssm_out", "recurrent output", True),
        ("only: blk.1.ssm_out", "recurrent output", False),
    ]
    assert (result[0].flawed, result[0].as_dict()["probes"]) == (1, 1)
    assert result[1].as_dict()["severity"]["divergence"] == 0.6


def test_damage_is_what_the_probes_find_or_what_diverges_too_far() -> None:
    assert damage(measured([], LEAST), LEAST) == []
    assert damage(measured([], 0.02), LEAST) == ["it diverges by 0.02 nats"]
    assert damage(measured([], 0.0, "degenerate-target"), LEAST) == ["degenerate-target"]
    assert damage(measured([], None), LEAST) == ["its logits are not numbers"]


@pytest.mark.parametrize(
    ("groups", "level", "limit"),
    [
        ([0.0001, 0.0002, 0.0003, 0.5], 0.0008, LEAST),  # one broken group
        ([0.0005, 0.5, 0.002, 0.7], 0.008, 0.08),  # two
        ([0.1, 0.1, 0.1, 0.1], 0.4, MOST),  # a coarse type
        ([0.002, 0.004], 0.004, 0.04),
        ([None, None, None, 0.001], None, LEAST),
    ],
)
def test_the_limit_comes_from_the_sound_part_of_the_model(
    groups: list[float | None], level: float | None, limit: float
) -> None:
    result = usual([measured([], value) for value in groups])
    assert result == (None if level is None else pytest.approx(level))
    assert limit_of(result, 0.0) == pytest.approx(limit)


def test_what_the_engine_itself_scatters_is_no_damage() -> None:
    assert limit_of(None, 0.005) == pytest.approx(0.05)
