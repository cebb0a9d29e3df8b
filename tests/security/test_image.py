"""The image, as far as its Dockerfile shows it: its user, its packages, its base. No daemon builds it here."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
STEPS = [
    step.split(maxsplit=1)
    for step in re.sub(r"\\\n|^#.*\n", "", (TOP / "Dockerfile").read_text(), flags=re.MULTILINE).splitlines()
    if step.strip()
]


def test_it_runs_as_a_user_of_its_own() -> None:
    users = [arguments for word, arguments in STEPS if word == "USER"]
    assert users == ["benchctl"]
    added_at = next(
        number for number, (word, arguments) in enumerate(STEPS) if word == "RUN" and "useradd" in arguments
    )
    used = STEPS.index(["USER", "benchctl"])
    assert (
        added_at < used < next(number for number, (_, arguments) in enumerate(STEPS) if "engines install" in arguments)
    )


def test_every_package_has_a_hash() -> None:
    installs = [part for _, arguments in STEPS for part in arguments.split("&&") if re.search(r"\bpip3? install", part)]
    assert len(installs) == 2
    assert "--require-hashes" in installs[0] and "docker.lock" in installs[0]
    assert {"--no-deps", "--no-build-isolation", "--no-index"} <= set(installs[1].split())
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    wanted = [
        *project["project"]["dependencies"],
        *project["build-system"]["requires"],
        *project["project"]["optional-dependencies"]["gpu"],  # of the image for CUDA
    ]
    locked = dict(re.findall(r"^([\w.-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", LOCK, re.MULTILINE))
    assert len(locked) == len(re.findall(r"^[^#\s]", LOCK, re.MULTILINE)), "each has a hash"
    for requirement in wanted:
        match = re.fullmatch(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)", requirement)
        assert match is not None, requirement
        assert match[1] in locked, f"make docker.lock again: {match[1]}"
        have, required = (tuple(map(int, re.findall(r"\d+", text)[:3])) for text in (locked[match[1]], match[2]))
        assert have >= required, f"make docker.lock again: {match[1]}"


LOCK = (TOP / "docker.lock").read_text()


@pytest.mark.parametrize(
    ("release", "digest", "code"), [("", "", 0), ("", "sha256:0", 0), ("1", "sha256:0", 0), ("1", "", 1)]
)
def test_a_release_names_its_base_by_digest(release: str, digest: str, code: int) -> None:
    assert ["FROM", "${BASE}${BASE_DIGEST:+@${BASE_DIGEST}}"] in STEPS
    check = next(arguments for word, arguments in STEPS if word == "RUN" and "RELEASE" in arguments)
    environment = {"RELEASE": release, "BASE_DIGEST": digest}
    done = subprocess.run(["/bin/sh", "-c", check], env=environment, capture_output=True, check=False)
    assert done.returncode == code
