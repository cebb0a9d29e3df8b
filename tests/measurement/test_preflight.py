"""The preflight: silent on a sound pair, and loud on models that were damaged on purpose."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from benchctl.analysis.warnings import KINDS
from benchctl.data.manifest import PreflightFinding, PreflightRecord
from benchctl.engines.base import Rendered
from benchctl.engines.scoring import Scores
from benchctl.errors import GateError
from benchctl.measurement.preflight import preflight, stop_if_strict, why_not_probed
from benchctl.measurement.prepare import Prepared, prepare
from benchctl.measurement.probes import ProbeAnswer, agreement, confidence, expected, probe_items
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Recipe

pytestmark = pytest.mark.slow

Damage = Callable[[np.ndarray], np.ndarray]


def prepared(folder: Path, server: Path, **changes: Any) -> Prepared:
    data = {
        "name": "preflight",
        "engine": {"device": "cpu", "context": 1024, "threads": 1},
        "models": {
            "target": {"source": "bundled:tiny-hybrid"},
            "draft": {"source": "bundled:tiny-hybrid-draft"},
        },
        "prompts": {"suite": "tiny.json", "tasks": ["code"], "limit": 2},
        "sampling": {"max_tokens": 16},
        "arms": [{"name": "baseline"}, {"name": "spec", "speculation": {"type": "draft-simple", "max": 4}}],
        **changes,
    }
    return prepare(Recipe.model_validate(data), recipe_folder=folder, binary=str(server))


def found(record: PreflightRecord) -> dict[str, str]:
    assert {finding.id for finding in record.findings} <= set(KINDS)
    return {finding.id: finding.seen for finding in record.findings}


def damaged(source: Path, target: Path, part: str, change: Damage) -> Path:
    """Copy a bf16 model and change the weights whose names hold `part`."""
    shutil.copy(source, target)
    for tensor in gguf.GGUFReader(target, "r+").tensors:
        if part in tensor.name and tensor.tensor_type.name == "BF16":
            bits = tensor.data.view(np.uint16)
            weights = change((bits.astype(np.uint32) << 16).view(np.float32)).astype(np.float32)
            bits[:] = (weights.view(np.uint32) >> 16).astype(np.uint16)
    return target


@pytest.mark.engine
def test_a_sound_pair_is_passed_in_silence_and_the_looks_are_kept(tmp_path: Path, llama_server: Path) -> None:
    record = preflight(prepared(tmp_path, llama_server), tmp_path / "preflight.log")
    assert record.findings == []
    assert record.checked[0] == "Target and draft have the same tokens and special tokens."
    assert record.checked[1].endswith(" tokens; with 16 of answer and a draft of 4 that is 60 of a context of 1024.")
    first = ["newlines/0", "indentation/0", "empty_lines/0", "mixed_scripts/0"]
    assert [probe.name for probe in record.probes[:4]] == first
    assert (tmp_path / "preflight.log").stat().st_size > 0


@pytest.mark.engine
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("quantize", "ids"),
    [
        ({"type": "q8_0", "tensors": {"ssm_out": "bf16"}}, set()),
        ({"type": "q8_0", "tensors": {"ssm_in": "tq2_0"}}, {"quantization-damage"}),
        ({"type": "tq2_0"}, {"quantization-damage", "unsure-target"}),
    ],
)
def test_a_quantization_that_does_damage_is_told_from_one_that_does_not(
    tmp_path: Path, llama_server: Path, quantize: dict[str, Any], ids: set[str]
) -> None:
    models = {"target": {"source": "bundled:tiny-hybrid", "quantize": quantize}}
    look = prepared(tmp_path, llama_server, models=models, arms=[{"name": "baseline"}])
    record = preflight(look, tmp_path / "preflight.log")
    assert set(found(record)) >= ids
    assert ids or not record.findings
    assert any(sentence.startswith("models.target is quantized as requested") for sentence in record.checked)


@pytest.mark.engine
@pytest.mark.usefixtures("cache")
def test_a_source_that_does_not_fit_the_memory_is_not_started(
    tmp_path: Path, llama_server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was quantized because of that, perhaps."""
    models = {"target": {"source": "bundled:tiny-hybrid", "quantize": {"type": "q8_0"}}}
    look = prepared(tmp_path, llama_server, models=models, arms=[{"name": "baseline"}])
    monkeypatch.setattr("benchctl.measurement.preflight.free_bytes", lambda device, devices: ("memory", 9e6))
    record = preflight(look, tmp_path / "preflight.log")
    assert record.checked[-1] == "The unquantized target was not probed: its 8 MiB do not fit the free memory."
    assert not (tmp_path / "preflight.source.log").exists()


@pytest.mark.engine
@pytest.mark.parametrize(
    ("part", "change"),
    [("ssm_out", lambda weights: weights * 300), ("attn_output", lambda weights: weights * np.float32(np.nan))],
    ids=["scaled", "not a number"],
)
def test_damaged_weights_are_found_without_anything_to_compare_with(
    tmp_path: Path, llama_server: Path, tiny_target: Path, part: str, change: Damage
) -> None:
    broken = damaged(tiny_target, tmp_path / "broken.gguf", part, change)
    models = {"target": {"source": str(broken)}}
    look = prepared(tmp_path, llama_server, models=models, arms=[{"name": "baseline"}], preflight="strict")
    record = preflight(look, tmp_path / "preflight.log")
    assert set(found(record)) & {"unsure-target", "degenerate-target", "preflight-failed"}
    with pytest.raises(GateError, match="strict recipe"):
        stop_if_strict(record, tmp_path)


@pytest.mark.engine
def test_a_context_that_is_too_short_is_counted_in_tokens(tmp_path: Path, llama_server: Path) -> None:
    engine = {"device": "cpu", "context": 128, "threads": 1}
    look = prepared(tmp_path, llama_server, engine=engine, sampling={"max_tokens": 100})
    findings = found(preflight(look, tmp_path / "preflight.log"))
    assert findings["context-too-short"].endswith("that is 144 of a context of 128.")


def test_off_looks_at_nothing_and_is_recorded(recipe: Recipe) -> None:
    absent: Any = type("Nothing", (), {"recipe": recipe.model_copy(update={"preflight": "off"}), "setups": {}})()
    record = preflight(absent, Path("log"))
    assert (record.mode, record.findings, record.holds) == ("off", [], True)
    assert record.checked == ["The target was not checked: the recipe has `preflight: off`."]


def test_only_a_strict_recipe_is_stopped(tmp_path: Path) -> None:
    finding = PreflightFinding(id="unsure-target", where="models.target", seen="It is.")
    stop_if_strict(PreflightRecord(mode="on", findings=[finding]), tmp_path)
    stop_if_strict(PreflightRecord(mode="strict"), tmp_path)
    with pytest.raises(GateError) as caught:
        stop_if_strict(PreflightRecord(mode="strict", findings=[finding]), tmp_path)
    assert caught.value.exit_code == 1


def test_every_kind_of_probe_comes_before_a_second_of_any() -> None:
    names = [(item.task, item.prompt_idx) for item in probe_items()]
    kinds = len({task for task, _ in names})
    assert len({task for task, _ in names[:kinds]}) == kinds
    assert {index for _, index in names[:kinds]} == {0}


class Fixed:
    """A scorer that expects the same wherever it is asked."""

    command = ("fixed",)
    in_batches = True

    def __init__(self, logprobs: dict[int, float]) -> None:
        self._scores = Scores(logprobs, 1)

    def render(self, prompt: Prompt) -> Rendered:
        return Rendered("", (1,))

    def read_prompt(self, prompt: Sequence[int], top: int) -> Scores:
        return self._scores

    read_on = read_whole = read_prompt

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        return ()

    def stop(self) -> int | None:
        return 0


def test_divergence_and_confidence_by_hand() -> None:
    scores = Scores({7: math.log(0.75), 8: math.log(0.25)}, 1)
    answer = ProbeAnswer("code/0", (1, 2), tokens=[7, 7], scores=[scores, scores])
    mean, tokens = confidence([answer])
    assert mean == pytest.approx(math.log(0.75))
    assert tokens == 2
    compared = agreement(Fixed({8: math.log(0.5), 7: math.log(0.5)}), [answer])
    assert compared is not None
    assert (compared.places, compared.same) == (2, 0)
    assert compared.divergence == pytest.approx(0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75))
    unknown = agreement(Fixed({9: 0.0}), [answer])
    assert unknown is not None
    assert unknown.divergence == pytest.approx(math.log(4))


def test_what_is_read_counts_where_it_is_among_the_likeliest() -> None:
    answer = ProbeAnswer("code/0", (5, 7, 9, 7, 8))
    assert expected(Fixed({7: -0.5, 8: -1.0}), [answer]) == (3, 4)


def test_nothing_asked_is_nothing_known() -> None:
    assert confidence([]) == (0.0, 0)
    assert agreement(Fixed({1: 0.0}), []) is None


def test_it_is_said_why_a_target_is_not_asked() -> None:
    from types import SimpleNamespace

    def told(model_format: str) -> str | None:
        return why_not_probed(SimpleNamespace(model_format=model_format))

    assert told("huggingface") == told("served") == "that needs a GGUF file, which has the vocabulary"
    assert told("gguf") == "this engine does not report probabilities"
