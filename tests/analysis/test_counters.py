"""The counters as columns: lists of unequal length, and what is not reported."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchctl.analysis.acceptance import find_counters
from benchctl.analysis.frame import make_frame


def test_positions_of_unequal_depth_stand_in_their_columns(make_record: Any) -> None:
    reported: list[list[int] | None] = [[3, 1], None, [], [5, 4, 2], [0]]
    records = [make_record(prompt_idx=index, accepted_by_position=counts) for index, counts in enumerate(reported)]
    counters = find_counters(make_frame(records, None))
    assert counters.positions.tolist() == [2, 0, 0, 3, 1]
    np.testing.assert_array_equal(
        counters.by_position, [[3, 1, 0], [np.nan, np.nan, np.nan], [0, 0, 0], [5, 4, 2], [0, 0, 0]]
    )


def test_unreported_counters_make_one_unknown_column(make_record: Any) -> None:
    counters = find_counters(make_frame([make_record()], None))
    assert counters.by_position.shape == (1, 1)
    assert np.isnan(counters.by_position).all()
    assert counters.trusted.tolist() == [True]
