"""What a shell completes, asked as a shell asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.paths import shipped_folder
from tests.benchctl_process import benchctl

MANIFEST = '{"arms": [{"name": "baseline"}, {"name": "spec_d2"}]}'


def completed(folder: Path, line: str) -> list[str]:
    words = line.split(" ")
    last = str(len(words) - 1)
    done = benchctl(cwd=folder, _BENCHCTL_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=last)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("benchctl run quicks", {"quickstart"}),
        ("benchctl run mi", {"mine.yaml"}),
        ("benchctl recipes show tiny-m", {"tiny-mtp"}),
        ("benchctl run quickstart --only spec_d1", {"spec_d16"}),
        ("benchctl run quickstart -k co", {"code"}),
        ("benchctl run --prompts plamo", {"plamo2-study"}),
        ("benchctl run --engine vl", {"vllm"}),
        ("benchctl run -t x --type ngram-mo", {"ngram-mod"}),
        ("benchctl report 2026", {"20260101-000000-abcd"}),
        ("benchctl compare 2026", {"20260101-000000-abcd"}),
        ("benchctl runs rm pa", {"pair"}),
        ("benchctl verify-lossless pair --arm spec", {"spec_d2"}),
        ("benchctl compare pair --arm spec", {"spec_d2"}),
        ("benchctl run broken.yaml --only x", set()),
        ("benchctl report --results nowhere x", set()),
    ],
)
def test_names_are_completed_and_errors_are_not_said(tmp_path: Path, line: str, names: set[str]) -> None:
    run = tmp_path / "results" / "pair" / "20260101-000000-abcd"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text(MANIFEST)
    (tmp_path / "mine.yaml").write_text((shipped_folder("recipes") / "quickstart.yaml").read_text())
    (tmp_path / "broken.yaml").write_text("{")
    assert set(completed(tmp_path, line)) == names
