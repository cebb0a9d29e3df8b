"""A pair in PLaMo 2's published layout is converted, started and measured with the study's own recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchctl.engines.common.programs import program
from benchctl.engines.llama_cpp.source import converter_script
from benchctl.models.convert import converted
from benchctl.models.gguf_facts import ROTARY_HEADS, rotates_nothing
from benchctl.models.gguf_header import read_header
from tests.benchctl_process import benchctl
from training.plamo2 import write_pair

pytestmark = [pytest.mark.engine, pytest.mark.torch]


def test_the_study_runs_on_a_cpu_and_some_drafts_are_rejected(tmp_path: Path) -> None:
    target, draft = write_pair(tmp_path)
    models = [f"--set=models.{role}.source={folder}" for role, folder in (("target", target), ("draft", draft))]
    small = ["--only=spec_d2", "--limit=1", "--set=sampling.max_tokens=24", "--blocks=1", "--set=engine.device=cpu"]
    done = benchctl("run", "plamo2-8b-metal", *models, *small, "--output", tmp_path / "results")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "results" / "plamo2-8b-metal").iterdir()
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    drafted = sum(record["draft_n"] or 0 for record in records)
    assert 0 < sum(record["draft_n_accepted"] or 0 for record in records) < drafted


def test_the_first_layer_gets_the_heads_that_the_rotary_dimensions_are_taken_from(tmp_path: Path) -> None:
    target, _ = write_pair(tmp_path)
    converter, unmended = program(converter_script()), tmp_path / "unmended.gguf"
    words = [*converter.command, "--outtype", "f32", "--outfile", str(unmended), str(target)]
    assert converter.run(words, tmp_path / "log", None) == 0
    made = read_header(converted(target, converter))

    assert rotates_nothing(read_header(unmended)) and not rotates_nothing(made)
    heads, key_heads = (made.integers(f"{ROTARY_HEADS}{end}") for end in ("", "_kv"))
    assert heads and key_heads and heads[0] == heads[1] and key_heads[0] == 0
    warned = benchctl("run", unmended, "--type", "ngram-simple", "--dry-run")
    assert "rotary" in warned.stdout + warned.stderr
