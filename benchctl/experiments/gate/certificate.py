"""The certificate of a run: an in-toto Statement of its verdict, made of the run's files alone; made again to check it.

Statement v1 (https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md) with the predicate test-result v0.1
(spec/predicates/test-result.md). Keys that begin with `benchctl_` are additions, which other readers ignore.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchctl.analysis.output_results import LOSSLESS, Losslessness
from benchctl.data.digests import canonical_sha256
from benchctl.data.manifest import Manifest, SetupIdentity
from benchctl.data.store import FURTHER, MANIFEST, RECORDS, RunData, open_run
from benchctl.errors import GateError, StorageError, UsageError
from benchctl.lossless.judge.run import analyse_run
from benchctl.text import first, one_line

Statement = dict[str, Any]
TYPE = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
NAMESPACE = "benchctl"
"""Of signatures: made for something else, it does not count."""
_MOST_BYTES = 1 << 24
RESULTS = {**dict.fromkeys(LOSSLESS, "PASSED"), "consistent with the target": "WARNED"}
"""By verdict; every other verdict, and a run without any, is FAILED."""


def make_certificate(folder: Path) -> Statement:
    """Return the statement on a run. Raises UsageError for records without a manifest."""
    run = open_run(folder)
    manifest = run.manifest
    if manifest is None:
        raise UsageError("Records without a manifest do not say what ran.", where=str(folder), fix="Name a run folder.")
    rows = analyse_run(run).losslessness
    by_result: dict[str, list[str]] = {"PASSED": [], "WARNED": [], "FAILED": []}
    for row in rows:
        by_result[RESULTS.get(row.verdict, "FAILED")].append(row.arm)
    worst = [result for result, arms in by_result.items() if arms]
    return {
        "_type": TYPE,
        "subject": [*_artefacts(manifest), *_files(run, RECORDS, *([FURTHER] if manifest.further else []))],
        "predicateType": PREDICATE,
        "predicate": {
            "result": worst[-1] if worst else "FAILED",
            "configuration": [
                _named(f"recipe {manifest.recipe_name}", manifest.recipe_sha256),
                _named("prompts", canonical_sha256([prompt.model_dump() for prompt in manifest.prompts])),
                _named("workload", manifest.workload_sha256),
                _file(run.folder / MANIFEST),
                *_files(run, *sorted(name for name in manifest.files if name.startswith("scores"))),
            ],
            "passedTests": by_result["PASSED"],
            "warnedTests": by_result["WARNED"],
            "failedTests": by_result["FAILED"],
            "benchctl_run": {
                "run": manifest.run,
                "created_at": manifest.created_at,
                "benchctl": manifest.benchctl_version,
                "files": run.integrity.state,
            },
            "benchctl_verdicts": {row.arm: _verdict(row) for row in rows},
        },
    }


def _verdict(row: Losslessness) -> dict[str, Any]:
    audit, stated = row.audit, row.stated
    return {
        "verdict": row.verdict,
        "reason": row.reason,
        "scope": None if row.scope is None else row.scope.model_dump(mode="json"),
        "prompts": dict(row.counts),
        "lossy_by_design": list(row.lossy),
        "limit": {
            "share_of_prompts_that_differ_at_most": row.differing_limit,
            "divergences_in_1000_tokens_beyond_noise_at_most": audit.excess_limit if audit is not None else None,
        },
        "power": None if stated is None else {"fault_nats": stated.nats, "chance": stated.chance},
        "replay": None if row.replay is None else row.replay.model_dump(mode="json", exclude={"arm"}),
    }


def _artefacts(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield engine and models of every setup, once each, as far as their hashes are known."""
    setups: Sequence[Manifest | SetupIdentity] = manifest.setups or [manifest]
    digests: dict[str, str] = {}
    for setup in setups:
        details = setup.engine.details
        label = " ".join(filter(None, ("engine", setup.engine.kind, setup.engine.version)))
        if isinstance(details.get("sha256"), str):
            digests[label] = details["sha256"]
        siblings = details.get("siblings")
        if isinstance(siblings, Mapping) and siblings:
            digests[f"{label}, libraries"] = canonical_sha256(dict(siblings))
        for role, model in (("target", setup.target), ("draft", setup.draft)):
            digests |= {f"{role} {file.name}": file.sha256 for file in (model.files if model else ())}
    yield from (_named(name, sha256) for name, sha256 in digests.items())


def _named(name: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": sha256}}


def _files(run: RunData, *names: str) -> Iterator[dict[str, Any]]:
    """Yield files of a run with the SHA-256 that its manifest has of each; none where any was changed."""
    files = run.manifest.files if run.manifest and not run.integrity.findings else {}
    yield from (_named(name, files[name].sha256) for name in names if name in files)


def _file(path: Path) -> dict[str, Any]:
    try:
        return _named(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    except OSError as error:
        raise StorageError(f"It cannot be read: {error.strerror}.", where=str(path)) from None


def text_of(statement: Statement) -> str:
    """Return the file's text."""
    return json.dumps(statement, indent=1, sort_keys=True) + "\n"


def read_certificate(file: Path) -> Statement:
    """Read a certificate. Raises StorageError for anything else."""
    fix = "Name a file that benchctl runs certify wrote."
    try:
        with file.open("rb") as stream:
            text = stream.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MiB")
        statement = json.loads(text.decode("utf-8"), object_pairs_hook=_without_repeats, parse_constant=_no_number)
        if (statement["_type"], statement["predicateType"]) != (TYPE, PREDICATE):
            raise ValueError("it is no statement of a test result")
        if statement["predicate"]["result"] not in ("PASSED", "WARNED", "FAILED"):
            raise ValueError("it has no result")
    except OSError as error:
        raise StorageError(f"The certificate cannot be read: {error.strerror}.", where=str(file), fix=fix) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StorageError(f"This is no certificate: {error}.", where=str(file), fix=fix) from None
    return dict(statement)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError for a key that is there twice: readers differ in which of them counts."""
    keys = Counter(key for key, _ in pairs)
    for key, count in keys.items():
        if count > 1:
            raise ValueError(f"the key {one_line(key, 60)} is there {count} times")
    return dict(pairs)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def check_against_run(statement: Statement, file: Path, folder: Path) -> None:
    """Make the statement again from a run's files. Raises GateError naming every field that is another."""
    differing = list(_differences(statement, make_certificate(folder), ""))
    if differing:
        raise GateError(
            f"The certificate does not say what {folder}'s files show: {first(differing, 6)}.",
            where=str(file),
            fix="Either was changed, or they do not belong together.",
        )


def _differences(stated: object, recomputed: object, where: str) -> Iterator[str]:
    if isinstance(stated, dict) and isinstance(recomputed, dict):
        for key in dict.fromkeys([*recomputed, *stated]):
            if key in stated and key in recomputed:
                yield from _differences(stated[key], recomputed[key], f"{where}.{key}".lstrip("."))
            else:
                yield f"{where}.{key}".lstrip(".")
    elif json.dumps(stated, sort_keys=True) != json.dumps(recomputed, sort_keys=True):
        yield where


def check_signature(file: Path, signers: Path) -> str:
    """Return who signed a file: `FILE.sig`, made with `ssh-keygen -Y sign`. Raises GateError for anybody else.

    `signers`: an allowed signers file, see ssh-keygen(1).
    """
    program = shutil.which("ssh-keygen")
    if program is None:
        raise UsageError(
            "ssh-keygen, which checks signatures, is not installed.",
            where="--signers",
            fix="Install OpenSSH: apt install openssh-client.",
        )
    signature = file.with_name(f"{file.name}.sig")
    for path, fix in (
        (signature, f"Sign it: ssh-keygen -Y sign -f KEY -n {NAMESPACE} {file}"),
        (signers, "Name an allowed signers file: a line such as `name@example.org ssh-ed25519 AAAA…` a signer."),
    ):
        if not path.is_file():
            raise UsageError("There is no such file.", where=str(path), fix=fix)
    files = ["-s", str(signature), "-f", str(signers)]
    principals = _ssh([program, "-Y", "find-principals", *files], b"")
    for name in principals.stdout.decode("utf-8", "replace").splitlines():
        checked = _ssh([program, "-Y", "verify", *files, "-I", name, "-n", NAMESPACE], file.read_bytes())
        if principals.returncode == 0 and checked.returncode == 0:
            return name
    raise GateError(
        "No known signer has signed this file.",
        where=str(signature),
        fix=f"Its signer must be listed in {signers}, and must have signed exactly this file, with -n {NAMESPACE}.",
    )


def _ssh(command: Sequence[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, input=content, capture_output=True, check=False)
