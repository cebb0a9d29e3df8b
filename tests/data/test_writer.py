from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from benchctl.data.manifest import Manifest
from benchctl.data.store import open_run
from benchctl.data.writer import LOCK, RunWriter
from benchctl.errors import StorageError
from tests.data.test_store import record


def test_a_half_written_line_is_cut_before_more_is_appended(folder: Path, manifest: Manifest) -> None:
    with RunWriter(folder, manifest) as writer:
        writer.append(record())
    with (folder / "records.jsonl").open("ab") as stream:
        stream.write(b'{"label": "' + b"x" * 200_000)  # longer than one read of the search for the last newline
    with RunWriter(folder, manifest) as writer:
        writer.append(record(prompt_idx=1))
    run = open_run(folder)
    assert [r.prompt_idx for r in run.records] == [0, 1]
    assert run.damaged == []


def test_a_second_writer_is_refused_with_the_owners_process(folder: Path, manifest: Manifest) -> None:
    code = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from benchctl.data.store import read_manifest
        from benchctl.data.writer import RunWriter
        with RunWriter(Path(sys.argv[1]), read_manifest(Path(sys.argv[1]))):
            print("open")
        """
    )
    with RunWriter(folder, manifest):
        refused = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=False)
    assert f"Another benchctl (process {os.getpid()}) is writing this run." in refused.stderr
    allowed = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=False)
    assert allowed.stdout == "open\n", allowed.stderr


def test_a_copy_of_the_locks_descriptor_in_a_starting_process_keeps_no_lock(folder: Path, manifest: Manifest) -> None:
    with RunWriter(folder, manifest):
        copy = copy_of_descriptor(folder / LOCK)
    try:
        with RunWriter(folder, manifest):
            pass
    finally:
        os.close(copy)


def copy_of_descriptor(file: Path) -> int:
    """Duplicate this process's descriptor of a file, as a process that is being started has it for a moment."""
    (descriptor,) = (int(link.name) for link in Path("/dev/fd").iterdir() if link.exists() and link.samefile(file))
    return os.dup(descriptor)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_error_that_says_how_to_go_on(folder: Path, manifest: Manifest) -> None:
    with RunWriter(folder, manifest) as writer:
        os.dup2(os.open("/dev/full", os.O_RDWR), writer._lines)
        with pytest.raises(StorageError, match="disk is full") as caught:
            writer.append(record())
    assert "--resume" in (caught.value.fix or "")


def test_a_record_that_does_not_fit_leaves_the_earlier_ones_whole(folder: Path, manifest: Manifest) -> None:
    """A file size limit cuts a write short in the middle, as a full disk does."""
    code = textwrap.dedent(
        """
        import resource, signal, sys
        from pathlib import Path
        from benchctl.errors import StorageError
        from benchctl.data.record import Record
        from benchctl.data.store import read_manifest
        from benchctl.data.writer import RunWriter
        folder = Path(sys.argv[1])
        record = Record(label="a", task="t", prompt_idx=0, rep=0, content="x" * 3000)
        with RunWriter(folder, read_manifest(folder)) as writer:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
            try:
                for index in range(9):
                    writer.append(record.changed(prompt_idx=index))
            except StorageError as error:
                print(error.what)
        """
    )
    with RunWriter(folder, manifest):
        pass
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=False)
    assert "disk is full" in done.stdout or "cannot write" in done.stdout, done.stderr
    run = open_run(folder)
    assert [r.prompt_idx for r in run.records] == [0, 1]
    assert run.damaged == []


def test_an_unwritable_folder_is_refused_before_anything_starts(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StorageError, match="cannot write here") as caught,
        RunWriter(tmp_path / "file" / "run", manifest),
    ):
        pass
    assert "--output" in (caught.value.fix or "")
