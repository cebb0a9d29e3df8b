"""Where the arms of a search stand, and what is said of one that was cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.data.manifest import ArmIdentity, EngineIdentity, Manifest, ModelIdentity, Tuning, TuningRung
from benchctl.data.record import Record
from benchctl.data.store import RunData, open_run
from benchctl.experiments.tune.halving import any_drafted, best_yet, find_standings, rungs_of
from tests.analysis.conditions.simulated import Server, Sweep, write_sweep


def record(arm: str, block: int, rate: float, *, drafted: int | None = None, prompt: int = 0) -> Record:
    return Record(
        label=arm,
        task="code",
        prompt_idx=prompt,
        rep=block,
        block=block,
        n_predicted=11,
        client_tok_per_sec=rate,
        draft_n=drafted,
        schema_version=1,
    )


def run_of(records: list[Record], arms: list[str], tuning: Tuning | None = None) -> RunData:
    speculation = {"type": "draft-simple"}
    manifest = Manifest(
        run="20260101-000000-abcd",
        benchctl_version="0",
        status="started",
        created_at="2026-01-01T00:00:00+00:00",
        recipe_name="toy-search",
        recipe={"blocks": 2},
        recipe_sha256="0",
        workload_sha256="0",
        baseline="baseline",
        blocks=2,
        tuning=tuning,
        engine=EngineIdentity(
            kind="toy", binary=None, found_in="recipe", version=None, build=None, commit=None, speculation_types=[]
        ),
        target=ModelIdentity(source="t.gguf", path="t.gguf", files=[]),
        draft=None,
        arms=[
            ArmIdentity(
                name=arm,
                baseline=arm == "baseline",
                argv=[],
                env=[],
                speculation=None if arm == "baseline" else speculation,
            )
            for arm in arms
        ],
        prompts=[],
    )
    return RunData(Path("run"), manifest, records, [])


def test_an_arm_stands_where_its_own_blocks_put_it() -> None:
    records = [record("baseline", 0, 10.0), record("baseline", 1, 5.0)]
    records += [record("fast", 0, 20.0, drafted=4), record("fast", 1, 10.0, drafted=4)]
    records += [record("slow", 0, 8.0, drafted=4)]  # out after the first block, which was the baseline's good one
    fast, slow = find_standings(run_of(records, ["baseline", "slow", "fast"]), ["slow", "fast"])
    assert (fast.arm, fast.blocks, slow.arm, slow.blocks) == ("fast", 2, "slow", 1)
    assert fast.speedup == pytest.approx(2.0) and slow.speedup == pytest.approx(0.8)


def test_one_disturbed_block_decides_little() -> None:
    records = [record("baseline", block, 1.0 if block == 1 else 10.0) for block in range(3)]
    records += [record("a", block, 9.0, drafted=4) for block in range(3)]
    (standing,) = find_standings(run_of(records, ["baseline", "a"]), ["a"])
    assert standing.speedup == pytest.approx(0.9), "not 2.4, which the sums over all blocks give"


def test_what_never_drafted_is_worth_exactly_no_speculation() -> None:
    records = [record("baseline", 0, 10.0), record("idle", 0, 11.0, drafted=0), record("slow", 0, 5.0, drafted=9)]
    records += [record("fast", 0, 10.5, drafted=9)]
    arms = ["idle", "dead", "slow", "fast"]
    standings = find_standings(run_of(records, ["baseline", *arms]), arms)
    assert [(row.arm, row.races, row.value) for row in standings] == [
        ("fast", True, pytest.approx(1.05)),
        ("idle", True, 1.0),
        ("slow", True, 0.5),
        ("dead", False, 0.0),
    ]
    assert list(map(str, standings))[1:] == ["idle 1.10× (never drafted)", "slow 0.50×", "dead no answer"]
    assert any_drafted(standings) and not any_drafted([standings[1], standings[3]])


@pytest.mark.parametrize(
    ("arms", "rungs"), [(1, [1]), (2, [2]), (3, [3]), (5, [5, 2]), (12, [12, 6, 3]), (15, [15, 7, 3])]
)
def test_every_rung_has_half_of_the_arms_before(arms: int, rungs: list[int]) -> None:
    assert rungs_of(arms) == rungs


def test_the_best_of_an_unfinished_search_is_no_result() -> None:
    tuning = Tuning(budget_s=60, prompts_per_block=1, rungs=[TuningRung(arms=["fast"], first_block=0, blocks=2)])
    records = [record("baseline", 0, 10.0), record("fast", 0, 20.0, drafted=4)]
    sentence = best_yet(run_of(records, ["baseline", "fast"], tuning))
    assert sentence.startswith("Best so far: fast, 2.00× no speculation over 1 block.")
    assert "no result" in sentence and "not measured again" in sentence
    assert best_yet(run_of([], ["baseline"], None)).startswith("Nothing was measured")
    no_standings = run_of([record("baseline", 0, 10.0)], ["baseline", "fast"], tuning)
    assert best_yet(no_standings).startswith("No arm has drafted")


def test_with_several_requests_in_flight_total_throughput_decides(tmp_path: Path) -> None:
    """By tokens in the time in which all slots are full, and not by the decode rate of each request."""
    server = Server(gain=lambda arm, concurrency, temperature: 0.8 if arm == "deep" else 1.2)
    arms = {"baseline": None, "deep": {"type": "draft-simple", "max": 8}, "short": {"type": "draft-simple", "max": 2}}
    write_sweep(tmp_path / "run", Sweep(concurrency=(4,), arms=arms, prompts=16), server)
    first, second = find_standings(open_run(tmp_path / "run"), ["deep", "short"])
    assert (first.arm, second.arm, first.blocks) == ("short", "deep", 3)
    assert first.speedup is not None and second.speedup is not None
    assert second.speedup < 1 < first.speedup < 1.2  # of whole requests, first tokens included
