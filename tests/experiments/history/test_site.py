"""`benchctl runs site`: names are harmless on it, its pages are made once, and nothing else is overwritten."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from benchctl.errors import StorageError
from benchctl.experiments.history.site import write_site
from benchmarks.history import write_runs
from tests.benchctl_process import benchctl

pytestmark = pytest.mark.integration


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "results"
    write_runs(folder, 8, repeats=2, slower=2)
    return folder


@pytest.fixture(scope="module")
def site(results: Path) -> Path:
    index, made, failed = write_site(results, results.parent / "public")
    assert (made, failed) == (8, {})
    return index


def test_every_run_has_a_row_an_arm_and_a_page(site: Path) -> None:
    read = Page(site.read_text("utf-8"))
    links = [str(link["href"]) for link in read.all("a") if str(link["href"]).startswith("runs/")]
    assert len(links) == 16 and len(set(links)) == 8
    assert all((site.parent / link).is_file() for link in links)
    assert all((site.parent / link).with_name("report.md").is_file() for link in links)


def test_names_are_text_and_only_its_own_scripts_run(site: Path) -> None:
    text = site.read_text("utf-8")
    assert "ngram &lt;b&gt;" in text and "many &lt;script&gt;" in text
    read = Page(text)
    assert not read.all("b") and len(read.all("script")) == 4
    policy = next(str(meta["content"]) for meta in read.all("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert digests == allowed
    assert not [tag for tag, attributes in read.tags if {"src", "onclick", "onload"} & attributes.keys()]
    (drawn,) = json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])["workloads"]
    assert drawn["series"] == ["spec_d4", "ngram <b>"] and len(drawn["points"]) == 16
    assert len(drawn["steps"]) == 1, "the planted step is marked"


def test_only_what_changed_is_made_again(results: Path, site: Path) -> None:
    out = site.parent
    told = json.loads(benchctl("runs", "site", results, "-o", out, "--json").stdout)
    assert (told["index"], told["made"], told["failed"]) == (str(site), 0, {})
    gone = next(results.rglob("records.jsonl")).parent
    gone.rename(results.parent / "elsewhere")
    assert write_site(results, out)[1] == 0
    assert len(list((out / "runs").iterdir())) == 7, "the page of a run that is gone goes, too"
    (results.parent / "elsewhere").rename(gone)
    assert write_site(results, out)[1] == 1


def test_another_folder_is_not_overwritten(results: Path, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(StorageError):
        write_site(results, tmp_path)
    assert (tmp_path / "index.html").read_text() == "mine"
