"""The shipped recipe against real llama-servers: run, verify, report; and the key is nowhere."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchctl.data.record import sha256_text, sha256_tokens
from benchctl.engines.common.endpoint import EndpointTarget
from benchctl.engines.common.http import HttpClient
from benchctl.engines.openai.engine import echo_scorer
from benchctl.errors import UsageError
from tests.benchctl_process import benchctl as in_a_process
from tests.resealed import reseal
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.engine]

RECIPE = Path(__file__).parents[3] / "recipes" / "endpoint.yaml"
SECRET = "sk-of-a-real-server-0123456789"


@pytest.fixture(scope="module")
def two_servers(
    llama_server: Path, tiny_target: Path, tiny_draft: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """The URLs of a llama-server without speculation and of one with it; both ask for a key."""
    logs = tmp_path_factory.mktemp("servers")
    plain = [str(llama_server), "-m", str(tiny_target), "-c", "2048", "-np", "1", "-t", "1", "--metrics"]
    plain += ["--api-key", SECRET, "--alias", "tiny"]
    drafting = [*plain, "-md", str(tiny_draft), "--spec-type", "draft-simple", "--spec-draft-n-max", "4"]
    servers = []
    try:
        for number, command in enumerate((plain, drafting)):
            with (logs / f"{number}.log").open("wb") as log:
                servers.append(subprocess.Popen([*command, "--port", "0"], stderr=log))
        urls = [address_in(logs / f"{number}.log") for number in range(len(servers))]
        yield urls[0], urls[1]
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait()


def address_in(log: Path) -> str:
    """Wait until the server of that log is healthy; return its URL, with a port that it chose itself."""
    listens = wait_for(lambda: re.search(r"listening on (http://\S+:\d+)\s", log.read_text()), "its address")
    assert listens is not None
    wait_for(lambda: httpx.get(f"{listens[1]}/health", trust_env=False).is_success, "its health")
    return f"{listens[1]}/v1"


def benchctl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return in_a_process(*words, cwd=folder, ENDPOINT_KEY=SECRET, NO_COLOR="1", COLUMNS="200")


def written(folder: Path, urls: tuple[str, str], **change: str) -> Path:
    text = RECIPE.read_text("utf-8").replace("# api_key_env: ENDPOINT_API_KEY  ", "api_key_env: ENDPOINT_KEY  ")
    text = text.replace("http://127.0.0.1:8080/v1", urls[0]).replace("http://127.0.0.1:8081/v1", urls[1])
    text = text.replace("max_tokens: 96", "max_tokens: 24\nwarmup: 1").replace("blocks: 5 ", "blocks: 1 ")
    for old, new in change.items():
        text = text.replace(old.replace("_", " "), new)
    path = folder / "endpoint.yaml"
    path.write_text(text, "utf-8")
    assert benchctl(folder, "recipes", "trust", str(folder)).returncode == 0
    return path


def test_a_llama_server_that_cannot_be_recognised_is_not_scored_on(two_servers: tuple[str, str]) -> None:
    """Its OpenAI route ignores `echo`; recognised, it is scored by its own route."""
    root = two_servers[0].removesuffix("/v1")
    client = HttpClient(root, headers={"Authorization": f"Bearer {SECRET}"})
    target = EndpointTarget(client, two_servers[0], "tiny", context=2048, timeout_s=60)
    with pytest.raises(UsageError, match="no log-probabilities of prompt tokens"):
        echo_scorer(target, root)
    client.close()


def test_run_verify_report_and_no_key_anywhere(two_servers: tuple[str, str], tmp_path: Path) -> None:
    recipe = written(tmp_path, two_servers)
    run = benchctl(tmp_path, "run", str(recipe), "--output", str(tmp_path / "results"))
    assert run.returncode == 0, run.stdout + run.stderr
    (folder,) = (tmp_path / "results" / "endpoint").iterdir()
    assert "`timings`" in (folder / "manifest.json").read_text("utf-8")
    verify = benchctl(tmp_path, "verify-lossless", str(folder))
    assert verify.returncode in (0, 1), verify.stdout + verify.stderr
    report = benchctl(tmp_path, "report", str(folder))
    assert report.returncode == 0, report.stdout + report.stderr
    everything = [run.stdout, run.stderr, verify.stdout, verify.stderr, report.stdout, report.stderr]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [text for text in everything if SECRET in text]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    manifest = (folder / "manifest.json").read_text("utf-8")
    assert '"state": "off"' in manifest
    assert '"state": "active"' in manifest
    records = (folder / "records.jsonl").read_text("utf-8")
    assert '"label":"spec_d4"' in records
    assert '"token_gap":null' in records


def test_an_endpoint_is_audited_on_the_baselines_own(two_servers: tuple[str, str], tmp_path: Path) -> None:
    """A token that is not the target's is found by the log-probabilities of the baseline's endpoint, not the arm's."""
    recipe = str(written(tmp_path, two_servers))
    vouched = ("--set", "engine.only_speculation_differs=true")
    run = benchctl(tmp_path, "run", recipe, *vouched, "--output", str(tmp_path / "results"), "-q")
    assert run.returncode == 0, run.stdout + run.stderr
    (folder,) = (tmp_path / "results" / "endpoint").iterdir()
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text("utf-8").splitlines()]
    lines = [line for line in lines if line["token_ids"]]  # those that were fetched after measuring
    record = next(line for line in lines if line["label"] == "spec_d4")
    record["token_ids"][9] = 3000
    record |= {"token_sha": sha256_tokens(record["token_ids"]), "content": "!", "content_sha": sha256_text("!")}
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    reseal(folder)
    verify = benchctl(tmp_path, "verify-lossless", str(folder), "--json", "--audit-minutes", "5")
    assert verify.returncode == 1, verify.stderr
    arm = next(arm for arm in json.loads(verify.stdout)["arms"] if arm["arm"] == "spec_d4")
    assert (arm["verdict"], arm["audit"]["lacking"]) == ("violation", None)
    assert arm["audit"]["beyond"] >= 1
    assert arm["audit"]["prefixes"] >= 1_000
    assert not [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_a_baseline_that_drafts_fails(two_servers: tuple[str, str], tmp_path: Path) -> None:
    recipe = written(tmp_path, (two_servers[1], two_servers[0]))
    run = benchctl(tmp_path, "run", str(recipe), "--output", str(tmp_path / "results"))
    assert run.returncode == 3, run.stdout + run.stderr
    message = run.stdout + run.stderr
    assert "reports that it is on" in message
    assert "reports that it does not speculate" not in message, "without its baseline no other arm is asked"


def test_an_arm_whose_endpoint_does_not_speculate_fails(two_servers: tuple[str, str], tmp_path: Path) -> None:
    plain = two_servers[0]
    recipe = written(tmp_path, (plain, plain.replace("127.0.0.1", "localhost")))
    run = benchctl(tmp_path, "run", str(recipe), "--output", str(tmp_path / "results"))
    assert run.returncode == 3, run.stdout + run.stderr
    assert "does not speculate" in run.stdout + run.stderr


def test_an_endpoint_that_is_not_there(tmp_path: Path) -> None:
    recipe = written(tmp_path, ("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1"))
    run = benchctl(tmp_path, "run", str(recipe), "--output", str(tmp_path / "results"))
    assert run.returncode == 3
    assert "accepts no connections" in run.stderr
    assert not (tmp_path / "results").exists()
