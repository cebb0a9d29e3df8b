"""Locks and folders in places that others can write to: no link is followed, and what killed processes left goes."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import benchctl
from benchctl.cli.app import app
from benchctl.data.store import open_run, read_manifest
from benchctl.data.writer import LOCK, LOGS, RunWriter, folder_lock
from benchctl.engines.common import process as engine_process
from benchctl.engines.common.log import make_private
from benchctl.engines.common.process import LEFT_FOR_S, EngineProcess, make_access
from benchctl.errors import StorageError
from benchctl.measurement.cell import fresh_log
from benchctl.writing import write_whole
from tests.cli.calls import call
from tests.waiting import wait_for

PACKAGE = Path(benchctl.__file__).parent
KEPT = Path(__file__).parents[1] / "data" / "kept" / "run"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_link_in_place_of_a_runs_lock_is_not_followed(tmp_path: Path) -> None:
    user_file = tmp_path / "own.txt"
    user_file.write_text("the user's own")
    run = tmp_path / "run"
    run.mkdir()
    (run / LOCK).symlink_to(user_file)
    with pytest.raises(StorageError), folder_lock(run):
        pass
    assert user_file.read_text() == "the user's own"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A stranger's run; links in it lead to a file of the user's."""
    (tmp_path / "own.txt").write_text("the user's own")
    return shutil.copytree(KEPT, tmp_path / "results" / "kept" / "20261123-063549-f5e2")


def links(run: Path, *names: str) -> Path:
    """Put links to the user's file at these names; return that file."""
    user_file = run.parents[2] / "own.txt"
    for name in names:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(user_file)
    return user_file


@pytest.mark.parametrize("name", ["records.jsonl", "manifest.json", "scores.json", ".manifest.json.new", ".summary.7"])
def test_a_run_with_a_link_in_it_is_refused_by_every_command(run: Path, name: str) -> None:
    user_file = links(run, name)
    for words in (
        ("report", str(run), "--no-figures"),
        ("verify-lossless", str(run)),
        ("run", "--resume", str(run)),
        ("compare", str(run), str(run)),
        ("runs", "show", str(run)),
        ("runs", "rm", "--yes", str(run)),
    ):
        error = call(app, *words).exception
        assert isinstance(error, StorageError), words
        assert (error.exit_code, error.where) == (4, str(run / name)) and "links" in error.what
    assert user_file.read_text() == "the user's own"
    assert run.name in call(app, "runs", "list", "--results", str(run.parents[1])).output


def test_a_folder_of_logs_that_is_a_link_and_a_pipe_are_refused(run: Path) -> None:
    (run / LOGS).symlink_to(run.parent)
    with pytest.raises(StorageError, match="links or pipes"):
        open_run(run)
    (run / LOGS).unlink()
    (run / "records.jsonl").unlink()
    os.mkfifo(run / "records.jsonl")
    with pytest.raises(StorageError, match="links or pipes"):
        open_run(run)


def test_a_log_that_leads_elsewhere_is_no_free_name_and_never_written(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "shell_settings"
    (run / LOGS).mkdir()
    (run / LOGS / "scoring.log").symlink_to(target)
    assert fresh_log(run, "scoring") == (1, run / LOGS / "scoring.1.log")
    with pytest.raises(StorageError, match="a link lies in its place"):
        EngineProcess(["/bin/true"], {}, run / LOGS / "scoring.log")
    with pytest.raises(StorageError, match="a link lies in its place"):
        make_private(run / LOGS / "scoring.log")
    assert not target.exists()


def test_a_file_is_replaced_whole_and_no_link_is_followed(run: Path) -> None:
    user_file = links(run, "scores.json", ".scores.json.new", ".scores.json.tmp")
    write_whole(run / "scores.json", "{}\n")
    assert (run / "scores.json").read_text() == "{}\n" and not (run / "scores.json").is_symlink()
    assert user_file.read_text() == "the user's own"
    assert [file.name for file in run.glob(".scores.json*")] == [".scores.json.new", ".scores.json.tmp"], "none is left"


def test_records_with_another_name_elsewhere_are_not_appended_to(run: Path, tmp_path: Path) -> None:
    os.link(run / "records.jsonl", tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    with pytest.raises(StorageError, match="another name"), RunWriter(run, read_manifest(run)):
        pass
    with pytest.raises(StorageError, match="another name"):
        EngineProcess(["/bin/true"], {}, tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere").read_bytes() == before


def test_files_that_a_user_names_replace_a_link_too(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user_file = run.parents[2] / "own.txt"
    for name in ("certificate.json", "recipe.yaml"):
        (run.parent / name).symlink_to(user_file)
    monkeypatch.chdir(run.parent)
    assert call(app, "runs", "certify", str(run)).exit_code == 0
    assert call(app, "recipes", "new", "ngram-mod", "-o", "recipe.yaml", "--force").exit_code == 0
    assert user_file.read_text() == "the user's own"


def test_every_write_uses_the_helper() -> None:
    """What writes by a name of its own does so in the user's cache, in a fresh private folder, or for itself alone."""
    pattern = re.compile(r"\.(write_text|write_bytes|touch)\(|open\([^)\n]*[\"'][wxa]b?[\"']")
    allowed = {
        "engines/common/python_environment.py",  # below the user's cache
        "engines/llama_cpp/companion.py",
        "engines/llama_cpp/installation.py",
        "engines/llama_cpp/source.py",
        "engines/llama_cpp/compile.py",
        "engines/llama_cpp/start.py",  # the private folder of an engine's key
        "engines/sglang/engine.py",
        "engines/transformers/serving/http.py",  # has an opener of its own: the server imports nothing of benchctl
        "engines/vllm/installation.py",
        "models/huggingface/folder.py",
        "models/files.py",  # a locked part, opened without following a link
        "permissions.py",
        "prompts/load.py",  # a fresh folder
        "reports/write.py",
    }
    writers = {str(file.relative_to(PACKAGE)): file.read_text("utf-8") for file in PACKAGE.rglob("*.py")}
    strange = [
        f"{name}: {match[0]}"
        for name, text in writers.items()
        if name not in allowed
        for match in pattern.finditer(text)
        if "opener=open_unlinked" not in text[match.start() : text.index("\n", match.start())]
    ]
    assert not strange


def old(folder: Path) -> None:
    long_ago = time.time() - 2 * LEFT_FOR_S
    os.utime(folder, (long_ago, long_ago))


def test_the_folder_of_a_killed_supervisor_goes_at_the_next_start(temporary: Path, tmp_path: Path) -> None:
    access = make_access(by_socket=True)
    engine = EngineProcess(
        [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(300)"],
        dict(os.environ),
        tmp_path / "log",
        access,
    )
    wait_for(lambda: "up" in (tmp_path / "log").read_text(), "the engine")
    old(access.folder)
    neighbour = make_access(by_socket=True)
    assert access.folder.is_dir(), "its engine runs"
    engine._supervisor.send_signal(signal.SIGKILL)
    engine._supervisor.wait()
    assert access.folder.is_dir(), "nobody was left to remove it"
    old(access.folder)
    after = make_access(by_socket=True)
    assert not access.folder.exists()
    assert neighbour.folder.is_dir() and after.folder.is_dir(), "just made, and not locked yet"


def test_only_folders_that_benchctl_made_for_engines_go(temporary: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    access_folder = make_access(by_socket=False).folder
    prefix = access_folder.name[:-8]
    link, second, locked = temporary / f"{prefix}link", temporary / "benchctl-other", temporary / f"{prefix}held"
    link.symlink_to(elsewhere)
    for folder in (second, locked):
        folder.mkdir()
        old(folder)
    old(access_folder)
    lock = os.open(locked, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    make_access(by_socket=False)
    os.close(lock)
    assert link.is_symlink() and elsewhere.is_dir() and second.is_dir() and locked.is_dir()
    assert not access_folder.exists()


def test_a_supervisor_starts_where_its_folder_cannot_be_locked(tmp_path: Path) -> None:
    supervisor = Path(engine_process.__file__).with_name("supervisor.py")
    command = [sys.executable, "-I", "-S", str(supervisor), str(tmp_path / "gone"), "/bin/true"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()  # its input stays open: the end of it is the end of benchctl, which ends engines
    assert "exit 0" in output
