"""The log that times every pass: what is read from it, and that the real server writes it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchctl.engines.base import Launch, Pass
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.engines.llama_cpp.probe import Flag, Flags
from benchctl.engines.llama_cpp.trace import read_passes
from benchctl.models.files import ResolvedPair
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling
from tests.engines.cells import arm_of, complete

HYBRID = Path(__file__).parents[1] / "data" / "log_trace_hybrid.txt"
"""One round of the bundled hybrid at depth 4, as its log had it: nothing is accepted, so that it goes back."""


def by_kind(passes: list[Pass]) -> dict[str, tuple[int, int, float]]:
    return {f"{item.kind} {item.width}": (item.width, item.count, round(1e6 * item.seconds)) for item in passes}


def test_one_round_of_a_hybrid() -> None:
    by_name = by_kind(read_passes(HYBRID.read_text()))
    assert by_name == {
        "draft 4": (4, 1, 1470),  # 0.03.019.141 to 0.03.020.611
        "checkpoint 1": (1, 1, 703),  # 557 µs after drafting, 146 before it
        "verify 5": (5, 1, 2887),  # 0.03.021.289 to 0.03.024.176
        "draft-read 5": (5, 1, 778),
        "restore 1": (1, 1, 249),
        "re-evaluate 2": (2, 1, 2095),
        "draft-read 2": (2, 1, 595),
    }


def test_what_reads_a_prompt_is_no_pass() -> None:
    lines = HYBRID.read_text().splitlines()
    prompt = lines[: next(index for index, line in enumerate(lines) if "n_gen = 1," in line)]
    assert any("yielding to queue" in line for line in prompt)
    assert read_passes("\n".join(prompt)) == []


def test_a_binary_without_that_level_is_not_traced() -> None:
    coarse = Flag(("-lv", "--verbosity"), "N", "Values: - 3: info")
    for flags in (Flags(()), Flags((coarse,))):
        engine = LlamaCppEngine(LlamaCppSpec())
        vars(engine)["_probe"] = SimpleNamespace(facts=flags)
        assert engine.traced(Launch(("llama-server",), {})) is None


@pytest.mark.engine
def test_the_real_server_is_timed(tmp_path: Path, llama_server: Path, tiny_pair: ResolvedPair) -> None:
    engine = LlamaCppEngine(LlamaCppSpec(device="cpu", context=1024), binary=str(llama_server))
    launch = engine.traced(engine.launch(arm_of("draft-simple", max=3), tiny_pair))
    assert launch is not None
    server = engine.start(launch, tmp_path / "server.log")
    try:
        prompt = server.render(Prompt(prompt="One, two, three, four,"))
        answer = complete(server, prompt, Sampling(max_tokens=32, ignore_eos=True))
    finally:
        server.stop()
    passes = engine.read_trace((tmp_path / "server.log").read_text(errors="replace"))
    verified = sum(item.count for item in passes if item.kind == "verify")
    assert verified == answer.ledger.rounds
    drafted = sum(item.count * item.width for item in passes if item.kind == "draft")
    assert drafted == answer.ledger.drafted
    saved = next(item for item in passes if item.kind == "checkpoint")
    assert saved.count == verified, "a hybrid saves its state before every round"
    spent = sum(item.seconds for item in passes)
    assert 0 < spent <= answer.decode_s + 0.05
    assert answer.phase_s is not None, "what drafting took also stands in the log's statistics"
    assert 0 < answer.phase_s["draft"] < answer.decode_s
