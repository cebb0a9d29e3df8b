"""Acceptance and the cost model, worked out by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchctl.analysis.cost import alpha_for, expected_tokens
from benchctl.analysis.results import Analysis
from benchctl.analysis.speed_results import Acceptance
from benchctl.data.cell import AttestationRecord, Cell
from benchctl.lossless.judge.run import analyse_run
from benchctl.reports.columns import Table
from benchctl.reports.figures.arms import draw_acceptance
from benchctl.reports.first_screen import first_screen
from benchctl.reports.paste import card
from benchctl.reports.tables.speed import acceptance as acceptance_table
from benchctl.words.verdict import explanation
from benchctl.words.warnings import seen

DEPTH_4 = {"baseline": None, "spec_d4": {"type": "draft-simple", "max": 4, "min": 1}}


def overall(analysis: Analysis) -> Acceptance:
    return next(item for item in analysis.acceptance if item.task == "all")


def spec(make_record: Any, index: int = 0, **more: Any) -> Any:
    # Eleven tokens: the first, then four rounds of one bonus token each and six accepted ones.
    counters = {"draft_n": 16, "draft_n_accepted": 6, "rounds": 4, "accepted_by_position": [3, 2, 1, 0]}
    return make_record("spec_d4", index, **(counters | more))


def test_rates_lengths_and_positions(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    records = [make_record(), spec(make_record)]
    overall_row = overall(analyse_run(make_run(records, make_manifest(DEPTH_4, 1, 1))))
    assert (overall_row.drafted, overall_row.accepted, overall_row.rounds) == (16, 6, 4)
    assert overall_row.rate == pytest.approx(6 / 16)
    assert overall_row.acceptance_length == pytest.approx(1 + 6 / 4)
    assert overall_row.tokens_per_round == pytest.approx(10 / 4)
    assert overall_row.position_unconditional == pytest.approx([0.75, 0.5, 0.25, 0.0])
    assert overall_row.position_conditional == pytest.approx([0.75, 2 / 3, 0.5, 0.0])


def test_steps_without_a_draft_count_where_they_are_reported(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    # One answer tells nine plain steps (20 tokens: the first, 4 rounds, 6 accepted, 9 plain), the other does not.
    plain = spec(make_record, n_predicted=20, token_ids=None, plain_steps=9, text="twenty tokens")
    records = [make_record(), make_record(index=1), plain, spec(make_record, 1)]
    overall_row = overall(analyse_run(make_run(records, make_manifest(DEPTH_4, 1, 2))))
    assert overall_row.acceptance_length == pytest.approx(1 + 6 / 4)
    assert overall_row.plain_steps == 9
    assert overall_row.tokens_per_step == pytest.approx((19 + 10) / (13 + 4)), (
        "9 + 4 steps, and 4, in the answer that does not tell"
    )


def test_an_arm_that_accepted_nothing_makes_one_token_a_step(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    counts = {"draft_n": 4, "draft_n_accepted": 0, "rounds": 1, "accepted_by_position": [0, 0, 0, 0]}
    records = [
        make_record(n_predicted=109, token_ids=None),
        make_record("spec_d4", n_predicted=109, token_ids=None, **counts),
    ]
    overall_row = overall(analyse_run(make_run(records, make_manifest(DEPTH_4, 1, 1))))
    assert overall_row.tokens_per_step == 1.0
    assert overall_row.accepted_in_round == [1, 0, 0, 0, 0]


def test_drafts_of_unequal_length_do_not_count_against_the_late_positions(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    # Four rounds: two drafted one token (both accepted), two drafted four (accepted 1 and 3 of them).
    counters: dict[str, Any] = {"draft_n": 10, "draft_n_accepted": 6, "rounds": 4, "accepted_by_position": [4, 1, 1, 0]}
    counters |= {"drafted_by_position": [4, 2, 2, 2], "accepted_by_length": [2, 0, 0, 4]}
    records = [make_record(), spec(make_record, **counters)]
    overall_row = overall(analyse_run(make_run(records, make_manifest(DEPTH_4, 1, 1))))
    assert overall_row.position_unconditional == pytest.approx([1.0, 0.25, 0.25, 0.0])
    assert overall_row.position_rate == pytest.approx([1.0, 0.5, 0.5, 0.0])
    assert overall_row.position_conditional == pytest.approx([1.0, 0.5, 1.0, 0.0])
    assert overall_row.position_drafted == [4, 2, 2, 2]
    assert overall_row.draft_lengths == [2, 0, 0, 2]
    assert overall_row.length_rate == [1.0, None, None, 0.5]
    assert overall_row.accepted_in_round == [0, 3, 0, 1, 0]


def test_means_over_requests_and_tasks_stand_beside_the_pooled_rate(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    few: dict[str, Any] = {"draft_n": 4, "draft_n_accepted": 4, "rounds": 1, "accepted_by_position": [1, 1, 1, 1]}
    records = [
        *(make_record(index=number) for number in range(2)),
        make_record(task="b"),
        spec(make_record),
        spec(make_record, 1, **few),
        spec(make_record, task="b", **few),
    ]
    overall_row = overall(analyse_run(make_run(records)))
    assert overall_row.rate == pytest.approx(14 / 24)
    assert overall_row.rate_by_request == pytest.approx((6 / 16 + 1 + 1) / 3)
    assert overall_row.rate_by_task == pytest.approx((10 / 20 + 1) / 2)


@pytest.mark.parametrize(
    ("counters", "message"),
    [
        ({"drafted_by_position": [4, 4, 4, 3]}, "The drafts by position do not add up to the total"),
        ({"accepted_by_length": [0, 0, 0, 5]}, "The acceptances by length do not add up to the total"),
        ({"drafted_by_position": [8, 1, 4, 3]}, "More draft tokens were accepted at a position than drafted there"),
    ],
)
def test_drafts_by_position_that_contradict_are_named(
    make_record: Any, make_run: Any, counters: dict[str, Any], message: str
) -> None:
    analysis = analyse_run(make_run([make_record(), spec(make_record, **counters)]))
    assert any(item.id == "contradictory-counters" and seen(item).startswith(message) for item in analysis.warnings)


def test_a_depth_that_changes_nothing_is_a_warning(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    kinds = {"baseline": None} | {f"d{k}": {"type": "draft-simple", "max": k} for k in (4, 8)}
    counters = {"draft_n": 16, "draft_n_accepted": 6, "rounds": 4, "accepted_by_position": [3, 2, 1, 0]}

    def warned(deeper: dict[str, Any]) -> list[str]:
        records = [make_record(index=n) for n in range(4)]
        records += [make_record("d4", n, **counters) for n in range(4)]
        records += [make_record("d8", n, **(counters | deeper)) for n in range(4)]
        analysis = analyse_run(make_run(records, make_manifest(kinds, 4, 1)))
        return [seen(item) for item in analysis.warnings if item.id == "depth-without-effect"]

    (message,) = warned({})
    assert message == "d4 (depth 4) and d8 (depth 8) drafted and accepted the same numbers in all 4 answers."
    assert warned({"draft_n": 17}) == []


def test_the_limit_on_tokens_may_cut_off_most_of_a_round(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    # Two tokens: the first, and one of the five that the only round made.
    cut = {"draft_n": 4, "draft_n_accepted": 4, "rounds": 1, "accepted_by_position": [1, 1, 1, 1]}
    short = make_record("spec_d4", n_predicted=2, token_ids=None, **cut)
    overall_row = overall(
        analyse_run(make_run([make_record(n_predicted=2, token_ids=None), short], make_manifest(DEPTH_4, 1, 1)))
    )
    assert (overall_row.rate, overall_row.rounds, overall_row.acceptance_length) == (1.0, 1, 5.0)


def test_where_no_position_is_told_the_end_may_cut_off_a_draft_of_the_recipes_depth(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    """mlx-vlm and ik_llama.cpp count the draft tokens past the end of an answer, too."""
    past: dict[str, Any] = {"draft_n": 4, "draft_n_accepted": 4, "rounds": None, "accepted_by_position": None}
    records = [make_record(n_predicted=2, token_ids=None), spec(make_record, n_predicted=2, token_ids=None, **past)]
    analysis = analyse_run(make_run(records, make_manifest(DEPTH_4, 1, 1)))
    assert overall(analysis).rate == 1.0
    assert "contradictory-counters" not in {overall_row.id for overall_row in analysis.warnings}


def test_a_grammar_may_leave_rounds_without_a_draft(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    few: dict[str, Any] = {"draft_n": 3, "draft_n_accepted": 2, "rounds": 4, "accepted_by_position": [2]}
    manifest = make_manifest(DEPTH_4, 1, 1, recipe={"sampling": {"grammar": "root ::= 'a'"}})
    assert overall(analyse_run(make_run([make_record(), spec(make_record, **few)], manifest))).drafted == 3
    assert overall(analyse_run(make_run([make_record(), spec(make_record, **few)]))).drafted is None


def test_what_the_engine_does_not_tell_stays_absent(make_record: Any, make_run: Any) -> None:
    analysis = analyse_run(make_run([make_record(), make_record("spec_d4")]))
    overall_row = overall(analysis)
    assert overall_row == Acceptance(
        arm="spec_d4",
        task="all",
        drafted=None,
        accepted=None,
        rate=None,
        rounds=None,
        acceptance_length=None,
        tokens_per_round=None,
        position_unconditional=None,
        position_conditional=None,
    )
    cost = analysis.costs[0]
    assert (cost.alpha, cost.overhead, cost.predicted, cost.break_even_alpha) == (None, None, None, None)
    assert cost.measured == pytest.approx(1.0)


def test_counts_without_rounds_give_a_rate_and_nothing_more(make_record: Any, make_run: Any) -> None:
    record = make_record("spec_d4", draft_n=10, draft_n_accepted=5)
    overall_row = overall(analyse_run(make_run([make_record(), record])))
    assert (overall_row.rate, overall_row.rounds, overall_row.acceptance_length) == (0.5, None, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"draft_n": 5}, "more draft tokens were accepted than drafted"),
        ({"draft_n": 40, "draft_n_accepted": 30, "accepted_by_position": None}, "than tokens came out"),
        ({"rounds": 12}, "more verify rounds"),
        ({"rounds": 0, "accepted_by_position": None}, "without a verify round"),
        ({"draft_n": 6, "rounds": 7}, "more verify rounds were counted than draft tokens"),
        ({"draft_n": 36, "rounds": 9}, "make more tokens than came out"),
        (
            {"plain_steps": 0, "n_predicted": 12, "token_ids": None, "text": "12 tokens"},
            "make fewer tokens than came out",
        ),
        ({"accepted_by_position": [3, 2, 0, 0]}, "do not add up"),
        ({"accepted_by_position": [2, 3, 1, 0]}, "later position"),
        ({"n_predicted": 12}, "token ids"),
    ],
)
def test_a_contradiction_is_reported_and_not_averaged(
    make_record: Any, make_run: Any, make_manifest: Any, fields: dict[str, Any], message: str
) -> None:
    records = [
        make_record("baseline", 0),
        make_record("baseline", 1),
        spec(make_record),
        spec(make_record, 1, **fields),
    ]
    analysis = analyse_run(make_run(records, make_manifest(DEPTH_4, 2, 1)))
    kinds = ("contradictory-counters", "contradicted-count")
    messages = [seen(item) for item in analysis.warnings if item.id in kinds]
    assert any(message in item.lower() and "code/1" in item and "code/0" not in item for item in messages), messages
    assert (overall(analysis).accepted, overall(analysis).rounds) == (6, 4)


def test_sound_counters_raise_no_warning(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    records = [make_record(block=block) for block in range(3)] + [spec(make_record, block=block) for block in range(3)]
    assert analyse_run(make_run(records, make_manifest(DEPTH_4, 1, 3))).warnings == []


def test_a_round_deeper_than_the_recipe_is_reported(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    deep = spec(make_record, draft_n=20, accepted_by_position=[2, 1, 1, 1, 1])
    analysis = analyse_run(make_run([make_record(), deep], make_manifest(DEPTH_4, 1, 1)))
    assert "depth-ignored" in {item.id for item in analysis.warnings}


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_alpha_and_tokens_are_inverse(depth: int) -> None:
    rng = random.Random(depth)
    for alpha in [0.0, 1.0, *(rng.random() for _ in range(20))]:
        tokens = expected_tokens(alpha, depth)
        assert 1 <= tokens <= depth + 1
        assert alpha_for(tokens, depth) == pytest.approx(alpha, abs=1e-6)
        if alpha < 1:
            assert tokens == pytest.approx((1 - alpha ** (depth + 1)) / (1 - alpha))
    assert alpha_for(depth + 1.01, depth) is None


def test_the_cost_of_a_round_and_its_break_even(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    # Baseline: 10 tokens in 1 s. Arm: 4 rounds in 2 s, so a round costs 5 baseline steps and yields 2.5 tokens.
    records = [make_record(rate=10), spec(make_record, rate=5)]
    analysis = analyse_run(make_run(records, make_manifest(DEPTH_4, 1, 1)))
    cost = analysis.costs[0]
    assert cost.depth == 4
    assert cost.overhead == pytest.approx(4.0)
    assert cost.alpha is not None and expected_tokens(cost.alpha, 4) == pytest.approx(2.5)
    assert cost.predicted == pytest.approx(0.5) == cost.measured
    assert cost.break_even_alpha == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["self-layerskip", "assisted", "eagle3", "draft-simple"])
def test_every_method_of_a_fixed_depth_has_a_break_even(
    make_record: Any, make_run: Any, make_manifest: Any, kind: str
) -> None:
    arms = {"baseline": None, "spec_d4": {"type": kind, "max": 4}}
    analysis = analyse_run(make_run([make_record(rate=10), spec(make_record, rate=5)], make_manifest(arms, 1, 1)))
    assert analysis.costs[0].depth == 4
    assert analysis.costs[0].break_even_alpha == pytest.approx(1.0)
    assert analysis.rounds.notes == []


@pytest.mark.parametrize(("verified", "depth"), [(16, 4), (None, None)])
def test_costs_go_by_the_tokens_that_were_verified(
    make_record: Any, make_run: Any, make_manifest: Any, verified: int | None, depth: int | None
) -> None:
    # An engine that adapts drafts 32 tokens in four rounds, and reads 16 of them, or does not report how many.
    arm = spec(make_record, rate=5, draft_n=32, verified_n=verified)
    analysis = analyse_run(make_run([make_record(rate=10), arm], make_manifest(DEPTH_4, 1, 1)))
    row = overall(analysis)
    assert (row.drafted, row.verified) == (32, verified)
    assert row.rate == pytest.approx(6 / 32)
    assert analysis.costs[0].depth == depth
    unknown = "the engine does not report how many of the drafted tokens it verified"
    assert analysis.rounds.notes == ([] if depth else [f"spec_d4: no break-even and no forecast, since {unknown}."])


@pytest.mark.parametrize(
    ("settings", "drafted", "reason"),
    [
        ({"type": "self-del", "max": 4}, 8, "rounds verify 2.0 drafted tokens on average, of 4 at most"),
        # No engine that ran here drafts a tree: this is what SGLang's EAGLE would tell of eight tokens, four deep.
        (
            {"type": "draft-eagle3", "max": 4},
            32,
            "rounds verify 8.0 drafted tokens on average: a tree, or deeper than 4",
        ),
        (
            {"type": "draft-simple", "max": 4, "p_min": 0.9},
            8,
            "rounds verify 2.0 drafted tokens on average, of 4 at most",
        ),
        ({"type": "ngram-simple", "max": 4}, 16, "text is drafted as far as it was seen before"),
        ({"type": "prompt-lookup", "max": 4}, 16, "text is drafted as far as it was seen before"),
        ({"type": ["draft-simple", "ngram-simple"], "max": 4}, 16, "several types draft together"),
        ({"type": "self-swift"}, 16, "the recipe names no depth"),
    ],
)
def test_without_a_fixed_depth_there_is_no_break_even_and_it_is_said_why(
    make_record: Any, make_run: Any, make_manifest: Any, settings: dict[str, Any], drafted: int, reason: str
) -> None:
    manifest = make_manifest({"baseline": None, "spec_d4": settings}, 1, 1)
    analysis = analyse_run(make_run([make_record(rate=10), spec(make_record, rate=5, draft_n=drafted)], manifest))
    cost = analysis.costs[0]
    assert (cost.depth, cost.alpha, cost.predicted, cost.break_even_alpha) == (None, None, None, None)
    assert analysis.rounds.notes == [f"spec_d4: no break-even and no forecast, since {reason}."]


def test_steps_without_a_draft_are_not_charged_to_the_rounds(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    # Ten tokens: 3 rounds with 3 accepted, four plain steps at 0.1 s. 1.3 s in all: 0.3 s a round, 3 baseline steps.
    slow = spec(make_record, rate=10 / 1.3, draft_n=12, draft_n_accepted=3, rounds=3, accepted_by_position=[2, 1, 0, 0])
    analysis = analyse_run(make_run([make_record(rate=10), slow], make_manifest(DEPTH_4, 1, 1)))
    assert analysis.costs[0].overhead == pytest.approx(2.0)


def test_the_cost_of_a_round_is_not_known_where_few_steps_had_a_draft(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    # One round with one accepted and eight plain steps: 1 ms more for each of those would be 8 ms more for the round.
    rare = spec(make_record, draft_n=4, draft_n_accepted=1, rounds=1, accepted_by_position=[1, 0, 0, 0])
    analysis = analyse_run(make_run([make_record(), rare], make_manifest(DEPTH_4, 1, 1)))
    cost = analysis.costs[0]
    assert (cost.overhead, cost.predicted, cost.break_even_alpha) == (None, None, None)
    assert analysis.acceptance[0].acceptance_length == 2.0
    assert analysis.verdicts[0].reason == "no cost"


def test_no_acceptance_pays_for_a_round_dearer_than_its_tokens(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    records = [make_record(rate=10, block=b) for b in range(3)]
    records += [spec(make_record, rate=2.5, block=b) for b in range(3)]  # a round costs ten steps, yields at most five
    analysis = analyse_run(make_run(records, make_manifest(DEPTH_4, 1, 3)))
    assert analysis.costs[0].break_even_alpha is None
    verdict = analysis.verdicts[0]
    assert (verdict.speed, verdict.setting) == ("slower", "draft-simple, depth 4, at least 1")
    assert (verdict.lossless, verdict.reason, verdict.break_even) == ("identical", "cost", "none")
    assert analysis.costs[0].overhead == pytest.approx(9.0)
    assert analysis.acceptance[0].acceptance_length == 2.5


def test_no_break_even_is_claimed_from_a_speed_up_that_may_be_none(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    rates = {0: 2.5, 1: 2.5, 2: 40.0}
    records = [make_record(rate=10, block=b) for b in range(3)]
    records += [spec(make_record, rate=rates[b], block=b) for b in range(3)]
    analysis = analyse_run(make_run(records, make_manifest(DEPTH_4, 1, 3)))
    assert analysis.costs[0].break_even_alpha is None  # by the point estimate
    verdict = analysis.verdicts[0]
    assert (verdict.speed, verdict.break_even) == ("undecided", None)


@pytest.mark.parametrize(
    ("rates", "claimed"),
    [
        ((2.50, 2.52, 2.48), True),
        ((3.6, 4.0, 4.4), False),  # the point estimate is above 5 steps a round, the interval reaches below
    ],
)
def test_no_acceptance_pays_only_when_the_whole_interval_shows_it(
    make_record: Any, make_run: Any, make_manifest: Any, rates: tuple[float, ...], claimed: bool
) -> None:
    records = [make_record(rate=10, block=b) for b in range(3)]
    records += [spec(make_record, rate=rate, block=b) for b, rate in enumerate(rates)]
    analysis = analyse_run(make_run(records, make_manifest(DEPTH_4, 1, 3)))
    assert analysis.costs[0].break_even_alpha is None and analysis.verdicts[0].speed == "slower"
    assert analysis.verdicts[0].break_even == ("none" if claimed else None)


@pytest.mark.parametrize(
    ("evidence", "fields", "doubt"),
    [
        ([], {}, None),
        (["log: 8 drafted, 6 accepted: acceptance is unchecked, because …"], {}, "unchecked"),
        (["contradiction (1 in all): an answer counts 9 accepted tokens of 8 drafted"], {}, "contradicted"),
        ([], {"draft_n": 5}, "contradicted"),
    ],
)
def test_acceptance_that_is_in_doubt_is_marked_wherever_it_is_shown(
    make_record: Any, make_run: Any, make_manifest: Any, evidence: list[str], fields: dict[str, Any], doubt: str | None
) -> None:
    manifest = make_manifest(DEPTH_4, 2, 1)
    observed = AttestationRecord(state="active", evidence=evidence)
    cell = {
        "block": 0,
        "arm": "spec_d4",
        "order": 1,
        "attempt": 0,
        "status": "finished",
        "log": "logs/a.log",
        "wall_s": 1,
    }
    manifest.cells = [Cell.model_validate(cell | {"started_at": "2026-11-21T11:05:00+00:00", "attestation": observed})]
    records = [
        make_record("baseline", 0),
        make_record("baseline", 1),
        spec(make_record),
        spec(make_record, 1, **fields),
    ]
    data = make_run(records, manifest)
    analysis = analyse_run(data)
    assert overall(analysis).doubt == analysis.verdicts[0].acceptance_doubt == doubt
    shown = f"({doubt})" if doubt else "%"
    tables: list[Table[Any]] = [first_screen(analysis)[0], acceptance_table(analysis)]
    for table in tables:
        rates = [str(column.text(row)) for column in table.columns for row in table.rows if column.header]
        assert any(rate.endswith(shown) and "%" in rate for rate in rates)
        assert (doubt or "%").lower() in (table.explanation.lower() + "%")
    assert doubt is None or f"% ({doubt}) of its draft tokens" in explanation(analysis, analysis.verdicts[0])
    assert (f"acceptance: {doubt}" in card(data, analysis)) == (doubt is not None)
    many = [row.model_copy(update={"rounds": 1000}) for row in analysis.acceptance]  # fewer are not drawn
    figure = draw_acceptance(analysis.model_copy(update={"acceptance": many}))
    assert figure is not None
    labels = " ".join(text.get_text() for axes in figure.axes for text in axes.texts)
    assert doubt is None or doubt in labels
