"""An SGLang of our own that is scored on, as an audit does; scripted in the shapes of SGLang's source."""

from __future__ import annotations

from pathlib import Path

from benchctl.engines.scoring import PrefillScorer, ScoringEngine
from benchctl.engines.sglang.engine import SglangEngine
from benchctl.models.files import ResolvedPair
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling
from tests.engines.cells import arm_of
from tests.engines.sglang.conftest import spec_of


def test_the_target_alone_is_launched_and_scored_on(python: Path, pair: ResolvedPair, tmp_path: Path) -> None:
    engine = SglangEngine(spec_of(python))
    assert isinstance(engine, ScoringEngine)
    launch = engine.launch(arm_of(), pair)
    scorer = engine.start_scorer(launch, tmp_path / "audit.log", Sampling(ignore_eos=True))
    try:
        assert isinstance(scorer, PrefillScorer)
        assert scorer.command == launch.argv
        prompt = scorer.render(Prompt(prompt="abc")).token_ids
        scores = scorer.score_answer(prompt, (100, 101, 7), 20)
        assert [score.likeliest for score in scores] == [100, 101, 7]
        assert [list(score.logprobs) for score in scores] == [[100, 99], [101, 99], [7, 99]]
        assert scorer.read_prompt(prompt, 20).likeliest == 100
        assert [scorer.read_on([*prompt, 100], 20).evaluated, scorer.read_on([*prompt, 4], 20).evaluated] == [1, 4]
    finally:
        scorer.stop()
