"""Reading llama-perplexity, the real one and one that is scripted to fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchctl.engines.common.programs import program
from benchctl.engines.llama_cpp.installation import PERPLEXITY, find_tool
from benchctl.engines.llama_cpp.perplexity import Perplexity, read_divergence, reference_bytes
from benchctl.engines.quantizing import TextTooShortError
from benchctl.errors import EngineError
from benchctl.models.quantize import OnLine, Program

TABLE = """\
====== Perplexity statistics ======
Mean PPL(Q)                   :   2.667970 ±   0.253934
Mean PPL(base)                :   2.662381 ±   0.253934
====== KL divergence statistics ======
Mean    KLD:   0.009137 ±   0.002140
Maximum KLD:   0.900000
99.9%   KLD:   0.758259
====== Token probability statistics ======
Same top p: 94.641 ± 0.815 %
"""


def test_the_table_is_read_with_its_errors() -> None:
    divergence = read_divergence(f"   1   2.1 ± 0.6   0.4 ± 0.1   0.7 ± 0.1   37.6 ± 2.2 %   82.0 ± 2.4 %\n{TABLE}")
    assert divergence is not None
    assert (divergence.divergence, divergence.divergence_error) == (0.009137, 0.00214)
    assert divergence.worst == 0.758259
    assert divergence.same_top == pytest.approx(0.94641)
    assert divergence.same_top_error == pytest.approx(0.00815)
    assert (divergence.perplexity, divergence.perplexity_error) == (2.66797, 0.253934)


def test_what_is_no_number_is_absent() -> None:
    text = re.sub(r"KLD:   0\.009137 ±   0\.002140", "KLD:        nan ±       -nan", TABLE)
    divergence = read_divergence(text)
    assert divergence is not None
    assert divergence.divergence is None
    assert divergence.divergence_error is None


@pytest.mark.parametrize("lost", ["Mean    KLD", "Same top p", "Mean PPL(Q)", "99.9%   KLD"])
def test_a_table_with_a_line_missing_is_none(lost: str) -> None:
    assert read_divergence("\n".join(line for line in TABLE.splitlines() if not line.startswith(lost))) is None


def scripted(says: Sequence[str], status: int = 0, write: Callable[[Path], None] | None = None) -> Perplexity:
    """A program whose calls say one text after the other."""
    texts = iter(says)

    def run(argv: Sequence[str], log: Path, on_line: OnLine | None) -> int:
        log.write_text(next(texts))
        if write is not None:
            write(Path(argv[argv.index("--kl-divergence-base") + 1]))
        return status

    return Perplexity(Program(("llama-perplexity",), "build", run), 1, "cpu")


def test_lines_that_the_logger_lost_are_measured_again(tmp_path: Path) -> None:
    tool = scripted(["", TABLE[:60], TABLE])
    divergence = tool.compare(tmp_path / "m", tmp_path / "r", tmp_path / "log", context=512)
    assert divergence.divergence == 0.009137


def test_a_program_without_a_result_is_an_error_with_its_last_lines(tmp_path: Path) -> None:
    tool = scripted(["failed reading log-probs for chunk 0"] * 8)
    with pytest.raises(EngineError, match="no result") as caught:
        tool.compare(tmp_path / "m", tmp_path / "r", tmp_path / "log", context=512)
    assert caught.value.log_tail == ("failed reading log-probs for chunk 0",)


def test_a_failing_program_is_not_taken_for_a_broken_model(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="ended by signal 9") as caught:
        scripted(["Killed"], status=-9).compare(tmp_path / "m", tmp_path / "r", tmp_path / "log", context=512)
    assert caught.value.kind == "crash"


def test_a_reference_that_a_full_disk_cut_off_is_noticed(tmp_path: Path) -> None:
    def cut(file: Path) -> None:
        head = b"_logits_" + (512).to_bytes(4, "little") + (4096).to_bytes(4, "little") + (3).to_bytes(4, "little")
        file.write_bytes(head + bytes(1000))

    with pytest.raises(OSError, match="No space left"):
        scripted([""], write=cut).write_reference(
            tmp_path / "m", tmp_path / "t", tmp_path / "r", tmp_path / "log", context=512, pieces=3
        )


@pytest.mark.engine
@pytest.mark.parametrize("name", ["tiny-hybrid", "tiny-sequential", "tiny-transformer"])
def test_the_real_program_measures_recurrent_models_too(
    name: str, llama_server: Path, tiny_target: Path, tmp_path: Path
) -> None:
    tool = Perplexity(program(find_tool(PERPLEXITY, llama_server)), 1, "cpu")
    model, text, reference, log = (
        tiny_target.with_name(f"{name}.gguf"),
        tmp_path / "t",
        tmp_path / "r",
        tmp_path / "log",
    )
    text.write_text("The children opened the window. " * 80)
    places = tool.write_reference(model, text, reference, log, context=64, pieces=4)
    assert places == 4 * 31
    assert reference.stat().st_size == reference_bytes(4096, 64, 4)
    same = tool.compare(model, reference, log, context=64)
    assert same.divergence == pytest.approx(0, abs=1e-5)
    assert same.same_top == 1
    divergence = tool.compare(tiny_target.with_name("tiny-hybrid-draft.gguf"), reference, log, context=64)
    assert divergence.divergence is not None
    assert divergence.divergence > 0.01


@pytest.mark.engine
def test_a_short_text_is_reported_with_its_length(llama_server: Path, tiny_target: Path, tmp_path: Path) -> None:
    tool = Perplexity(program(find_tool(PERPLEXITY, llama_server)), 1, "cpu")
    text = tmp_path / "t"
    text.write_text("One line only.")
    with pytest.raises(TextTooShortError) as caught:
        tool.write_reference(tiny_target, text, tmp_path / "r", tmp_path / "log", context=64, pieces=3)
    assert 2 < caught.value.tokens < 20
