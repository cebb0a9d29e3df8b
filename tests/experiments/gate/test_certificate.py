"""Certificates: what they say, that they can be made again, and that no changed one passes."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchctl.cli.app import app
from benchctl.data.store import open_run
from benchctl.errors import BenchctlError, GateError, StorageError, UsageError
from benchctl.experiments.gate.certificate import Statement, make_certificate, text_of
from benchctl.lossless.judge.run import analyse_run
from benchctl.words.scope import scope_sentence
from tests.cli.calls import call
from tests.cli.test_compare import write_run
from tests.kept_runs import ROOT
from tests.security.test_evidence import edit_records

KEPT = ROOT / "results" / "qwen2.5-coder" / "20261122-191218-f263"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "results" / "by-hand" / "sound")


@pytest.fixture
def file(run: Path, tmp_path: Path) -> Path:
    path = tmp_path / "certificate.json"
    path.write_text(text_of(make_certificate(run)))
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the keys `known` and `unknown`, and `allowed`, in which the first is listed."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    folder = tmp_path_factory.mktemp("keys")
    for name in ("known", "unknown"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    public = (folder / "known.pub").read_text().split()
    (folder / "allowed").write_text(f"someone@example.org {public[0]} {public[1]}\n")
    return folder


def sign(file: Path, key: Path, namespace: str = "benchctl") -> None:
    file.with_name(f"{file.name}.sig").unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", namespace, str(file)], check=True)


def checked(*words: object) -> BenchctlError | None:
    """Return how a check failed; `None` where it held."""
    result = call(app, "runs", "certify", "--check", *map(str, words))
    assert result.exception is None or isinstance(result.exception, BenchctlError), result.exception
    return result.exception


def test_it_says_what_the_run_showed(run: Path, file: Path) -> None:
    certificate = json.loads(file.read_text())
    assert certificate["_type"] == "https://in-toto.io/Statement/v1"
    assert certificate["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    predicate = certificate["predicate"]
    assert (predicate["result"], predicate["passedTests"], predicate["failedTests"]) == ("PASSED", ["spec"], [])
    verdict = predicate["benchctl_verdicts"]["spec"]
    (judged,) = analyse_run(open_run(run)).losslessness
    assert judged.scope is not None
    assert (verdict["verdict"], verdict["scope"]) == ("identical", judged.scope.model_dump(mode="json"))
    shown = call(app, "runs", "certify", "--check", str(file), "--run", str(run))
    assert f"  spec: identical. {scope_sentence(judged.scope)}" in shown.output
    assert {subject["name"] for subject in certificate["subject"]} == {"target t.gguf", "records.jsonl"}
    assert all(len(entry["digest"]["sha256"]) for entry in [*certificate["subject"], *predicate["configuration"]])
    real = make_certificate(KEPT)["predicate"]
    assert (real["result"], real["passedTests"]) == ("FAILED", ["spec_d2", "ngram_mod"]) or real["failedTests"]
    assert real["benchctl_verdicts"][real["failedTests"][0]]["verdict"] in ("undetermined", "violation")
    assert any(verdict["power"] for verdict in real["benchctl_verdicts"].values())


def test_it_is_made_again_from_the_records(run: Path, file: Path, tmp_path: Path) -> None:
    assert checked(file, "--run", run) is None
    shutil.copytree(run, run.with_name("copy"))
    recomputed = checked(
        file, "--run", edit_records(run.with_name("copy"), lambda line: line.update(tok_per_sec=1.0), seal=False)
    )
    assert isinstance(recomputed, GateError) and "subject" in recomputed.what


def leaves(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if not inner:
        yield path
    else:
        for key, own in inner:
            yield from leaves(own, (*path, key))


def changed(statement: Statement, path: tuple[Any, ...]) -> Statement:
    forged = copy.deepcopy(statement)
    parent: Any = forged
    for key in path[:-1]:
        parent = parent[key]
    was = parent[path[-1]]
    parent[path[-1]] = "WARNED" if path[-1] == "result" else [*was, "x"] if isinstance(was, list) else f"{was}0"
    return forged


def test_no_field_can_be_changed(run: Path, file: Path, keys: Path) -> None:
    sign(file, keys / "known")
    assert checked(file, "--signers", keys / "allowed") is None
    statement = json.loads(file.read_text())
    for path in leaves(statement):
        file.write_text(text_of(changed(statement, path)))
        assert checked(file, "--run", run) is not None, path
        assert checked(file, "--signers", keys / "allowed") is not None, path
    for added in ({"more": 1}, {"predicate": statement["predicate"] | {"more": 1}}):
        file.write_text(text_of(statement | added))
        assert checked(file, "--run", run) is not None
        assert checked(file, "--signers", keys / "allowed") is not None


def test_only_a_known_signer_of_this_kind_of_file_counts(file: Path, keys: Path) -> None:
    for key, namespace in (("unknown", "benchctl"), ("known", "file")):
        sign(file, keys / key, namespace)
        assert isinstance(checked(file, "--signers", keys / "allowed"), GateError), key
    file.with_name("certificate.json.sig").write_text("nothing")
    assert isinstance(checked(file, "--signers", keys / "allowed"), GateError)


def test_what_was_not_checked_is_not_verified(
    run: Path, file: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unchecked = checked(file)
    assert isinstance(unchecked, GateError) and "not verified" in unchecked.what
    unsigned = checked(file, "--signers", keys / "allowed")
    assert isinstance(unsigned, UsageError) and "ssh-keygen -Y sign" in (unsigned.fix or "")
    monkeypatch.setenv("PATH", "")
    without = checked(file, "--signers", keys / "allowed")
    assert isinstance(without, UsageError) and "openssh-client" in (without.fix or "")
    assert (unchecked.exit_code, unsigned.exit_code, without.exit_code) == (1, 2, 2)


def test_a_sound_certificate_of_a_failure_exits_with_one(tmp_path: Path) -> None:
    file = tmp_path / "certificate.json"
    file.write_text(text_of(make_certificate(KEPT)))
    failed = checked(file, "--run", KEPT)
    assert isinstance(failed, GateError) and "sound" in failed.what


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"_type": 1, "predicateType": 2}', '{"predicate": []}', "[" * 100_000]
)
def test_what_is_no_certificate_is_said(file: Path, run: Path, text: str) -> None:
    file.write_text(text)
    assert "certificate" in str(checked(file, "--run", run))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda text: text.replace(b'"result": "PASSED"', b'"result": "FAILED", "result": "PASSED"'),
            "result is there 2",
        ),
        (lambda text: text.replace(b'"_type"', b'"_type": "x", "_type"'), "_type is there 2"),
        (lambda text: text.replace(b'"PASSED",', b'"PASSED", "benchctl_more": NaN,'), "NaN is no number"),
        (lambda text: text.decode().encode("utf-16"), "utf-8"),
        (lambda text: b"[" * 100_000, "no certificate"),
        (lambda text: text.replace(b'"predicate": {', b'"predicate": [{', 1), "no certificate"),
        (lambda text: b" " * (1 << 24) + text, "larger than 16 MiB"),
        (lambda text: b"9" * 10_000, "no certificate"),
    ],
)
def test_what_two_readers_may_read_differently_is_refused(
    run: Path, file: Path, keys: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    """Though it is signed, and though its last words are those of the run."""
    text = file.read_bytes()
    file.write_bytes(change(text))
    assert file.read_bytes() != text
    sign(file, keys / "known")
    for words in ((file, "--run", run), (file, "--signers", keys / "allowed")):
        error = checked(*words)
        assert isinstance(error, StorageError) and message in str(error), error


def test_a_signed_certificate_shows_no_escape(run: Path, file: Path, keys: Path) -> None:
    statement = json.loads(file.read_text())
    statement["predicate"]["passedTests"] = ["\x1b[2Jspec\n\u202eevil"]
    statement["predicate"]["benchctl_verdicts"] = {
        "\x1b]0;t\x07": {"verdict": "\x1b[31m", "scope": "\x1b", "reason": 5}
    }
    file.write_text(json.dumps(statement))
    sign(file, keys / "known")
    result = call(app, "runs", "certify", "--check", str(file), "--signers", str(keys / "allowed"))
    assert result.exception is None or isinstance(result.exception, BenchctlError | SystemExit), result.exception
    assert not {"\x1b", "\x07", "\u202e"} & set(result.output)
