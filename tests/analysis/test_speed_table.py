"""The table of speed: what counts as timed, which blocks broke off, and the values that are pooled from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchctl.analysis.frame import make_frame
from benchctl.analysis.speed_table import Measured, rate_table, rates, speed_table

PROMPTS = [("code", number) for number in range(4)]


def test_a_speed_up_is_tokens_over_seconds_beside_those_of_the_baseline(make_record: Any, make_manifest: Any) -> None:
    records = [
        make_record(arm, index, block=block, rate=rate * (1 + block))
        for arm, rate in (("baseline", 10.0), ("spec", 15.0))
        for block in range(2)
        for index in range(4)
        if (arm, block, index) != ("spec", 1, 3)
    ]
    frame = make_frame(records, make_manifest({"baseline": None, "spec": {"type": "draft-simple", "max": 4}}, 4, 2))
    table = speed_table(frame, frame.arms.index("spec"))
    assert table.timed_prompts.tolist() == [True, True, True, False]
    assert table.sums(table.timed).shape == (7, 4)
    measured = table.measured(table.timed_prompts)
    assert measured.value == pytest.approx(1.5) and measured.blocks == pytest.approx([1.5, 1.5])
    assert measured.by_prompt == [pytest.approx(1.5), pytest.approx(1.5), pytest.approx(1.5), None]
    rate = rate_table(frame, frame.baseline)
    assert rate.measured(rate.timed_prompts).blocks == pytest.approx([10.0, 20.0])


def test_a_block_that_broke_off_is_left_out() -> None:
    seconds = np.ones((3, 4))
    seconds[1, 1:] = np.nan
    table = rates(PROMPTS, np.full((3, 4), 8.0), seconds)
    assert table.full_blocks.tolist() == [True, False, True]
    assert not table.timed_prompts[1:].any()
    complete = table.in_blocks(table.full_blocks).at(PROMPTS[:2])
    assert complete.timed_prompts.tolist() == [True, True] and complete.prompts == tuple(PROMPTS[:2])
    assert complete.measured(complete.timed_prompts).value == pytest.approx(8.0)


def test_nothing_is_measured_where_no_prompt_is_chosen_or_no_block_is_there() -> None:
    table = rates(PROMPTS, np.ones((0, 4)), np.ones((0, 4)))
    assert not table.timed_prompts.any()
    assert table.measured(table.timed_prompts) == Measured(None, [])
