"""A report's folder is written whole or not at all, and only a report is ever replaced."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from matplotlib.figure import Figure

from benchctl.analysis.results import Analysis
from benchctl.data.store import RunData
from benchctl.errors import StorageError
from benchctl.reports.figures.draw import draw_all
from benchctl.reports.write import report_folder, write_report
from benchctl.words.document import analysis_document


def test_everything_is_written(run_data: RunData, analysis: Analysis, tmp_path: Path) -> None:
    folder = report_folder(analysis, tmp_path / "reports")
    files = write_report(run_data, analysis, folder)
    assert folder == tmp_path / "reports" / "qwen2.5-coder" / "20261121-110500-3fa9"
    paths = [files.page, files.markdown, files.analysis, *files.tables, *files.figures]
    assert all(path.stat().st_size > 50 for path in paths)
    assert len(files.tables) == 6
    assert len(files.figures) == 6
    assert json.loads(files.analysis.read_text()) == json.loads(json.dumps(analysis_document(analysis)))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_report_is_replaced(run_data: RunData, analysis: Analysis, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    write_report(run_data, analysis, folder)
    write_report(run_data, analysis, folder, figures=False)
    assert not (folder / "figures").exists()
    assert (folder / "index.html").exists()


def test_what_is_no_report_is_left_alone(run_data: RunData, analysis: Analysis, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(StorageError, match="Another file or folder"):
        write_report(run_data, analysis, folder, figures=False)
    assert (folder / "thesis.tex").read_text() == "years of work"


def test_a_full_disk_leaves_the_earlier_report(
    run_data: RunData, analysis: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "r"
    write_report(run_data, analysis, folder, figures=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    write = Path.write_bytes

    def full(path: Path, data: Any) -> int:
        if path.suffix == ".csv":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="No space left on device"):
        write_report(run_data, analysis, folder, figures=False)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(tmp_path.iterdir()) == [folder]


def test_an_unwritable_place_is_an_error_with_advice(run_data: RunData, analysis: Analysis, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="could not be written") as caught:
        write_report(run_data, analysis, tmp_path / "file" / "recipe" / "run", figures=False)
    assert caught.value.fix is not None
    assert "--output" in caught.value.fix
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("name", ["../../etc", "/abs", "a/b", "..", "x" * 300, "\x00", ""])
def test_names_stay_below_the_folder(name: str, analysis: Analysis, tmp_path: Path) -> None:
    folder = report_folder(analysis.model_copy(update={"recipe": name, "run": name}), tmp_path)
    assert folder.parent.parent == tmp_path
    assert ".." not in folder.parts
    assert len(folder.name) <= 100


def test_a_figure_is_laid_out_once_and_drawn_once_for_each_format(analysis: Analysis) -> None:
    with patch.object(Figure, "draw", autospec=True, side_effect=Figure.draw) as draw:
        figures = draw_all(analysis)
    assert figures
    assert draw.call_count == 3 * len(figures)
