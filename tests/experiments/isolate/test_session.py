"""A hunt with the real programs: stopped in its middle, gone on with, asked again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchctl.data.writer import LOCK
from benchctl.errors import StorageError, UsageError
from benchctl.experiments.isolate import session
from benchctl.experiments.isolate.search import Measure
from benchctl.experiments.isolate.session import isolate
from benchctl.experiments.isolate.source import SourceModel, find_source_model
from benchctl.experiments.isolate.stored import (
    ISOLATION,
    TEXT,
    Isolation,
    Kept,
    Measurement,
    read_isolation,
)
from benchctl.measurement.prepare import RecipeContext
from benchctl.measurement.probes import probe_items
from benchctl.measurement.progress import Display
from benchctl.recipes.schema import Recipe
from benchmarks.outliers import FAMILIES, Outliers, write_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cache")]


HIDDEN = Display(Console(quiet=True))


@pytest.fixture
def few_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three probes in place of eighteen: enough for a judgement, and quick."""
    monkeypatch.setattr(session, "probe_items", lambda: probe_items()[:3])


@pytest.fixture
def source(tmp_path: Path, llama_server: Path, tiny_target: Path) -> SourceModel:
    """A model whose ssm_in does not survive quantization."""
    damage = Outliers("ssm_in", (1, 2), 4, 7)
    write_model(tiny_target, tmp_path / "model.gguf", [damage], np.random.default_rng(1))
    recipe = Recipe.model_validate(
        {
            "name": "hunt",
            "engine": {"device": "cpu", "context": 1024, "threads": 1},
            "models": {"target": {"source": "model.gguf"}},
            "prompts": {"suite": "tiny.json"},
            "arms": [{"name": "baseline"}],
        }
    )
    return find_source_model(RecipeContext(recipe, tmp_path, trusted=False), base="q8_0", binary=str(llama_server))


def stored(folder: Path) -> Isolation:
    isolation = read_isolation(folder)
    assert isolation is not None
    return isolation


def each(*wanted: Kept) -> Callable[[Measure], list[Measurement]]:
    """A search that measures these."""
    return lambda measure: [measure(keep) for keep in wanted]


def nothing(measure: Measure) -> None:
    """A search that measures nothing."""


@pytest.mark.engine
@pytest.mark.usefixtures("few_probes")
def test_an_interrupted_hunt_goes_on_and_measures_nothing_twice(
    source: SourceModel, tmp_path: Path, cache: Path
) -> None:
    out = tmp_path / "results"
    family, layers = frozenset({"ssm_in"}), frozenset({"blk.1.ssm_in", "blk.2.ssm_in"})

    def stopped(measure: Measure) -> None:
        measure(None)
        measure(frozenset())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as interrupt:
        isolate(source, stopped, out, HIDDEN, tokens=1024)
    (folder,) = (out / "hunt").iterdir()
    assert "same command" in str(interrupt.value) and str(folder) in str(interrupt.value)
    assert folder.name.startswith("isolate-q8_0-")
    first = stored(folder).measurements
    assert [measurements.kept for measurements in first] == [None, []]

    everything = each(None, frozenset(), family, layers)
    second_folder, isolation, measurements = isolate(source, everything, out, HIDDEN, tokens=1024)
    assert second_folder == folder
    assert stored(folder).measurements == measurements
    assert measurements[:2] == first
    assert not list(cache.glob("isolate/*"))  # nothing large stays
    assert isolation.text is not None
    assert isolation.text.origin == "tiny, with the source's own answers"
    assert isolation.text.places >= 255

    source_divergence, full, kept_family, kept_layers = (measurement.divergence for measurement in measurements)
    assert source_divergence < kept_family < 0.01 < full
    assert kept_family < kept_layers < 0.01  # two of four layers are enough, and no more than the whole family
    assert measurements[1].bytes < measurements[3].bytes < measurements[2].bytes < measurements[0].bytes
    assert isolate(source, everything, out, HIDDEN, tokens=1024)[2] == measurements, "measured once"


@pytest.mark.engine
def test_the_damage_of_these_tests_is_none_in_full_precision(
    source: SourceModel, tmp_path: Path, tiny_target: Path
) -> None:
    text, silent, log = tmp_path / "text", tmp_path / "silent.gguf", tmp_path / "log"
    text.write_text("The children opened the window because it was raining.\n" * 40)
    for family in FAMILIES:
        damage, seed = [Outliers(family, (0, 2), 4, 8)], 3
        write_model(tiny_target, silent, damage, np.random.default_rng(seed), loud=False)
        write_model(tiny_target, source.files[0], damage, np.random.default_rng(seed))
        assert source.files[0].read_bytes() != silent.read_bytes()
        source.divergence.write_reference(silent, text, tmp_path / family, log, context=64, pieces=4)
        result = source.divergence.compare(source.files[0], tmp_path / family, log, context=64)
        assert result.divergence == pytest.approx(0, abs=1e-5)
        assert result.same_top == 1


@pytest.mark.engine
@pytest.mark.usefixtures("few_probes")
def test_a_text_of_ones_own_is_another_question(source: SourceModel, tmp_path: Path) -> None:
    text = tmp_path / "own.txt"
    text.write_text("The children opened the window at the hotel because it was raining.\n" * 20)
    folder, isolation, _ = isolate(source, each(None), tmp_path, HIDDEN, text=text, tokens=1024)
    assert isolation.text is not None
    assert isolation.text.origin == "own.txt"
    assert isolation.text.context < 512  # too short for two whole pieces
    assert (folder / TEXT).read_text() == text.read_text()
    (folder / TEXT).write_text("something else")
    with pytest.raises(StorageError, match="is missing or has changed"):
        isolate(source, each(frozenset()), tmp_path, HIDDEN, text=text, tokens=1024)
    text.write_text("Short.")
    with pytest.raises(UsageError, match=r"too few"):
        isolate(source, each(None), tmp_path, HIDDEN, text=text, tokens=1024)


@pytest.mark.engine
@pytest.mark.usefixtures("few_probes")
def test_a_disk_that_fills_up_costs_nothing_that_was_measured(
    source: SourceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "own.txt"
    text.write_text("The children opened the window at the hotel because it was raining.\n" * 20)
    folder, *_ = isolate(source, each(None), tmp_path, HIDDEN, text=text, tokens=1024)

    def full(*args: object) -> None:
        raise StorageError("the quantized model cannot be kept: No space left on device")

    monkeypatch.setattr(session, "quantize_to", full)
    with pytest.raises(StorageError, match="No space left"):
        isolate(source, each(frozenset()), tmp_path, HIDDEN, text=text, tokens=1024)
    assert len(stored(folder).measurements) == 1


def test_two_at_once_are_refused(source: SourceModel, tmp_path: Path) -> None:
    import fcntl

    def measuring(measure: Measure) -> None:
        (folder,) = (tmp_path / "hunt").iterdir()
        with (folder / LOCK).open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(StorageError, match=r"is measuring here"):
            isolate(source, each(None), tmp_path, HIDDEN)

    isolate(source, measuring, tmp_path, HIDDEN)


def test_a_damaged_file_of_results_is_not_overwritten(source: SourceModel, tmp_path: Path) -> None:
    folder, *_ = isolate(source, nothing, tmp_path, HIDDEN)
    (folder / ISOLATION).write_text("{half")
    with pytest.raises(StorageError, match="cannot be read"):
        isolate(source, nothing, tmp_path, HIDDEN)
    assert (folder / ISOLATION).read_text() == "{half"
    (folder / ISOLATION).write_text('{"schema": 99}')
    with pytest.raises(StorageError, match="newer benchctl"):
        isolate(source, nothing, tmp_path, HIDDEN)
