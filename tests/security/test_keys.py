"""Keys go where the user sent them, and nowhere is anything sent before that is settled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchctl.paths import config_folder
from benchctl.permissions import FILE
from benchctl.recipes.load import load_recipe
from benchctl.recipes.trust import find_openings
from tests.benchctl_process import benchctl
from tests.security.conftest import Listener

SECRET = "a-secret-of-mine-0123456789"
DRY = ("run", "r.yaml", "--dry-run")
COMMANDS = [DRY, ("run", "r.yaml", "-q"), ("recipes", "check", "r.yaml"), ("tune", "r.yaml"),
            ("diagnose", "r.yaml"), ("breakeven", "r.yaml"), ("verify-sampling", "r.yaml")]  # fmt: skip


def written(url: str, key: str | None = None, more: str = "") -> None:
    named = "" if key is None else f", api_key_env: {key}"
    Path("r.yaml").write_text(
        f"name: r\nengine: {{kind: openai, url: '{url}'{named}}}\nprompts: {{suite: tiny.json}}\n"
        f"arms: [{{name: baseline}}, {{name: other, speculation: {{type: ngram-mod}}{more}}}]\n"
    )


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_recipe_cannot_choose_a_variable_of_the_user(home: Path, listener: Listener, words: tuple[str, ...]) -> None:
    written(f"{listener.url}/v1", "AWS_SECRET_ACCESS_KEY")
    done = benchctl(*words, AWS_SECRET_ACCESS_KEY=SECRET)
    assert done.returncode == 2, done.stderr
    assert listener.heard == []
    if words[0] != "breakeven":  # which has no synthetic arms for an endpoint, and says so first
        output = done.stdout + done.stderr
        assert "AWS_SECRET_ACCESS_KEY" in output
        assert "--trust-recipe" in output


def test_a_trusted_folder_sends_its_keys_and_no_other_folder_does(home: Path, listener: Listener) -> None:
    written(listener.url, "MY_KEY")
    output = benchctl(*DRY, MY_KEY=SECRET).stderr
    assert f"sends what your variable MY_KEY holds to {listener.url}" in output
    assert listener.heard == []
    assert benchctl("recipes", "trust", ".").returncode == 0
    assert benchctl(*DRY, MY_KEY=SECRET).returncode == 2  # two arms on one server: refused by the adapter, after asking
    assert any(f"Bearer {SECRET}" in request for request in listener.heard)
    written(listener.url, "OTHER_KEY")  # edited: nothing is asked again
    assert "trust" not in benchctl(*DRY, OTHER_KEY=SECRET).stderr
    listener.heard.clear()
    theirs = home / "theirs"
    theirs.mkdir()
    shutil.copy("r.yaml", theirs)
    assert benchctl("run", theirs / "r.yaml", "--dry-run", OTHER_KEY=SECRET).returncode == 2
    assert listener.heard == []


def test_what_is_trusted_is_listed_private_and_can_be_taken_back(home: Path) -> None:
    benchctl("recipes", "trust", ".")
    assert (config_folder() / FILE).stat().st_mode & 0o777 == 0o600
    listed = json.loads(benchctl("recipes", "trust", "--json").stdout)
    assert (listed["folders"], listed["programs"]) == ([str(Path.cwd())], [])
    benchctl("recipes", "trust", ".", "--remove")
    assert json.loads(benchctl("recipes", "trust", "--json").stdout)["folders"] == []


@pytest.mark.parametrize(
    "url",
    ["http://192.0.2.7:8000", "https://stranger.example/v1", "http://2130706433:80", "http://localhost.example",
     "http://evil.localhost:1", "http://[::ffff:192.0.2.7]:80"],
)  # fmt: skip
def test_a_server_off_this_machine_is_allowed_first(home: Path, url: str) -> None:
    written(url)
    assert f"engine.url: {url}, which is not this machine" in benchctl(*DRY).stderr
    assert benchctl("recipes", "check", "r.yaml").returncode == 2


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1/v1", "http://[::1]:1"])
def test_a_server_on_this_machine_without_a_key_needs_nothing(home: Path, url: str) -> None:
    written(url)
    assert find_openings(load_recipe(Path("r.yaml")), Path.cwd()) == []


def test_an_arms_own_address_is_asked_for_too(home: Path) -> None:
    written("http://127.0.0.1:1", more=", url: 'http://stranger.example:80'")
    assert "arm other: url: http://stranger.example:80" in benchctl(*DRY).stderr


def test_what_is_typed_goes_where_it_was_typed_and_only_then(home: Path) -> None:
    written("http://127.0.0.1:1", "MY_KEY")
    key, url = ("--set", "engine.api_key_env=MY_KEY"), ("--set", "engine.url=http://192.0.2.7:2")
    assert benchctl(*DRY, *key, MY_KEY=SECRET).returncode == 3  # nobody listens there
    assert benchctl(*DRY, MY_KEY=SECRET).returncode == 2
    assert "engine.api_key_env" in benchctl(*DRY, *url, MY_KEY=SECRET).stderr, "the server alone was typed"
    written("http://192.0.2.7:1", "MY_KEY")
    assert "engine.url" in benchctl(*DRY, *key, MY_KEY=SECRET).stderr, "the key alone was typed"


def test_trust_of_a_call_ends_with_it(home: Path, listener: Listener) -> None:
    written(listener.url, "MY_KEY")
    benchctl(*DRY, "--trust-recipe", MY_KEY=SECRET)
    assert any(SECRET in request for request in listener.heard)
    listener.heard.clear()
    benchctl(*DRY, MY_KEY=SECRET)
    assert listener.heard == []
