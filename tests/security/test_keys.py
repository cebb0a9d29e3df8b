"""Keys go where the user sent them, and nowhere is anything sent before that is settled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchctl.paths import config_folder
from benchctl.permissions import FILE, not_given, settle
from benchctl.recipes.load import load_recipe
from tests.benchctl_process import benchctl
from tests.security.conftest import Listener

SECRET = "a-secret-of-mine-0123456789"
DRY = ("run", "r.yaml", "--dry-run")
COMMANDS = [DRY, ("run", "r.yaml", "-q"), ("recipes", "check", "r.yaml"), ("race", "r.yaml"), ("tune", "r.yaml"),
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
        said = done.stdout + done.stderr
        assert "AWS_SECRET_ACCESS_KEY" in said
        assert "--trust-recipe" in said


def test_the_narrow_option_is_named_before_trust(home: Path, listener: Listener) -> None:
    written(listener.url, "MY_KEY")
    said = benchctl(*DRY, MY_KEY=SECRET).stderr
    assert said.index(f"benchctl engines allow {listener.url} --key MY_KEY") < said.index("--trust-recipe")


def test_a_key_that_was_allowed_for_a_server_goes_there_and_only_there(home: Path, listener: Listener) -> None:
    assert benchctl("engines", "allow", f"{listener.url}/v1", "--key", "MY_KEY").returncode == 0
    written(listener.url, "MY_KEY")
    assert benchctl(*DRY, MY_KEY=SECRET).returncode == 2  # two arms on one server: refused by the adapter, after asking
    assert any(f"Bearer {SECRET}" in request for request in listener.heard)
    listener.heard.clear()
    written(listener.url, "OTHER_KEY")
    assert benchctl(*DRY, OTHER_KEY=SECRET).returncode == 2
    written("http://127.0.0.1:9", "MY_KEY")
    assert "engines allow http://127.0.0.1:9 --key MY_KEY" in benchctl(*DRY, MY_KEY=SECRET).stderr
    assert listener.heard == []


def test_what_was_allowed_is_listed_private_and_can_be_taken_back(home: Path, listener: Listener) -> None:
    benchctl("engines", "allow", "https://lan.example:8443/v1", "--key", "MY_KEY")
    assert (config_folder() / FILE).stat().st_mode & 0o777 == 0o600
    listed = json.loads(benchctl("engines", "allow", "--json").stdout)
    assert listed["servers"] == {"https://lan.example:8443": ["MY_KEY"]}
    benchctl("engines", "allow", "https://lan.example:8443", "--key", "MY_KEY", "--remove")
    assert json.loads(benchctl("engines", "allow", "--json").stdout)["servers"] == {"https://lan.example:8443": []}
    benchctl("engines", "allow", "https://lan.example:8443", "--remove")
    assert json.loads(benchctl("engines", "allow", "--json").stdout)["servers"] == {}


def test_what_is_taken_back_is_not_given_by_trust_either(home: Path) -> None:
    url, file = "https://lan.example:8443", Path("r.yaml")
    written(url)
    assert settle(load_recipe(file), Path.cwd(), file, trusted=True)
    assert settle(load_recipe(file), Path.cwd(), file)
    benchctl("engines", "allow", url)
    benchctl("engines", "allow", url, "--remove")
    assert not settle(load_recipe(file), Path.cwd(), file)


@pytest.mark.parametrize(
    "url",
    ["http://192.0.2.7:8000", "https://stranger.example/v1", "http://2130706433:80", "http://localhost.example",
     "http://evil.localhost:1", "http://[::ffff:192.0.2.7]:80"],
)  # fmt: skip
def test_a_server_off_this_machine_is_allowed_first(home: Path, url: str) -> None:
    written(url)
    assert "reaches the network" in benchctl(*DRY).stderr
    assert benchctl("recipes", "check", "r.yaml").returncode == 2


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1/v1", "http://[::1]:1"])
def test_a_server_on_this_machine_without_a_key_needs_nothing(home: Path, url: str) -> None:
    written(url)
    assert not_given(load_recipe(Path("r.yaml")), Path.cwd()) == []


def test_an_arms_own_address_is_asked_for_too(home: Path) -> None:
    written("http://127.0.0.1:1", more=", url: 'http://stranger.example:80'")
    assert "engines allow http://stranger.example:80" in benchctl(*DRY).stderr


def test_what_is_typed_is_allowed_and_an_allowed_server_has_one_port(home: Path) -> None:
    written("http://127.0.0.1:1", "MY_KEY")
    here = load_recipe(Path("r.yaml"), overrides={"engine.url": "http://127.0.0.1:2"})
    typed = ("--set", "engine.url=http://127.0.0.1:2", "--set", "engine.api_key_env=MY_KEY")
    assert benchctl(*DRY, *typed, MY_KEY=SECRET).returncode == 3  # nobody listens there
    assert not_given(here, Path.cwd()) == []
    assert len(not_given(load_recipe(Path("r.yaml")), Path.cwd())) == 1


def test_a_trusted_recipe_is_trusted_until_it_changes(home: Path, listener: Listener) -> None:
    written(listener.url, "MY_KEY")
    benchctl(*DRY, "--trust-recipe", MY_KEY=SECRET)
    assert any(SECRET in request for request in listener.heard)
    listener.heard.clear()
    benchctl(*DRY, MY_KEY=SECRET)
    assert any(SECRET in request for request in listener.heard)
    listener.heard.clear()
    with Path("r.yaml").open("a") as file:
        file.write("# changed\n")
    benchctl(*DRY, MY_KEY=SECRET)
    assert listener.heard == []
