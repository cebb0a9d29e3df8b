"""Speed and acceptance inside and outside of thinking, worked out on paper."""

from __future__ import annotations

from typing import Any

from benchctl.lossless.judge.run import analyse_run
from benchctl.reports.tables.speed import thinking


def test_steps_and_time_belong_to_the_side_of_their_first_token(make_record: Any, make_run: Any) -> None:
    """Eleven tokens, of which five think: the prompt's own, a step of 3, a step of 4 across the end, a step of 3."""
    steps = {"target_steps": [[4, 2], [4, 3], [4, 2]], "draft_n": 12, "draft_n_accepted": 7, "rounds": 3}
    thought = {"reasoning_tokens": 5, "reasoning_s": 2.0, "decode_s": 5.0}
    ids = [*range(100, 107), 1, 2, 3, 4]
    records = [make_record("baseline", **thought), make_record("spec", ids=ids, text="else", **thought, **steps)]
    analysis = analyse_run(make_run(records))
    assert analysis.thinking is not None
    baseline, spec = analysis.thinking
    assert (baseline.inside.tokens, baseline.outside.tokens) == (5, 6)
    assert (baseline.inside.tok_s, baseline.outside.tok_s) == (2.0, 2.0), "4 tokens in 2 s, 6 in 3 s"
    assert (baseline.inside.rate, baseline.inside.diverging) == (None, None), "its steps are not reported"
    assert (spec.inside.drafted, spec.inside.accepted, spec.inside.rounds) == (8, 5, 2)
    assert (spec.outside.rate, spec.outside.length) == (0.5, 3.0)
    assert (spec.inside.diverging, spec.outside.diverging) == (0, 1), "at token 7"
    assert len(thinking(analysis).rows) == 2
    plain = analyse_run(make_run([make_record("baseline"), make_record("spec")]))
    assert plain.thinking is None and "thinking" not in plain.model_dump()
