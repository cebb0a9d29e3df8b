"""Everyday use stays without friction: ordinary command lines of a user's own files, servers and builds, without
--trust-recipe; and the same, asked for by a stranger's recipe, is refused with what gives it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from benchctl import models
from tests.benchctl_process import benchctl
from tests.security.conftest import Listener, marking_program

MODELS = Path(models.__file__).parent / "bundled"
DRY = ("--dry-run", "-q")
TEXTS = ("suite: tiny.json, limit: 1", "suite: own.txt, limit: 1", "suite: tiny.json, limit: 1, context: own.txt")


class Everyday:
    """A user at work in a folder of their own."""

    def __init__(self, home: Path, server: Path, listener: Listener) -> None:
        self.home, self.server, self.listener = home, server, listener
        elsewhere = home / "elsewhere"
        elsewhere.mkdir()
        for name in ("tiny-hybrid", "tiny-hybrid-draft", "tiny-sequential"):
            shutil.copy(MODELS / f"{name}.gguf", elsewhere)
        for text in (home / "asked.txt", Path("own.txt")):
            text.write_text("Say something.\n")
        self.elsewhere = elsewhere

    def recipe(self, *, engine: str = "{}", prompts: str = TEXTS[0], target: str = "bundled:tiny-sequential") -> Path:
        """Write a recipe into the user's folder."""
        pair = "" if "url" in engine else f"models: {{target: {{source: '{target}'}}}}\n"
        arms = "{name: baseline}" if "url" in engine else "{name: baseline}, {name: n, speculation: {type: ngram-mod}}"
        file = Path("r.yaml")
        file.write_text(
            f"name: r\nengine: {engine}\nprompts: {{{prompts}}}\nblocks: 1\npreflight: 'off'\n"
            f"sampling: {{max_tokens: 4}}\n{pair}arms: [{arms}]\n"
        )
        return file

    def build(self) -> Path:
        """Put a llama-server of the user's own where they build."""
        build = self.home / "llama.cpp" / "build" / "bin"
        if not build.exists():
            shutil.copytree(self.server.parent, build)
        return build / self.server.name


@pytest.fixture
def user(home: Path, llama_server: Path, listener: Listener) -> Everyday:
    return Everyday(home, llama_server, listener)


Lines = list[tuple[object, ...]]


def own_models(user: Everyday) -> Lines:
    model_words = ("run", "-t", user.elsewhere / "tiny-hybrid.gguf", *DRY)
    draft = ("-d", user.elsewhere / "tiny-hybrid-draft.gguf", "--depth", "2,4")
    return [
        model_words,
        (*model_words, *draft),
        (*model_words, "--prompts", user.home / "asked.txt"),
        (*model_words, "--type", "ngram-mod"),
    ]


def models_in_a_recipe(user: Everyday) -> Lines:
    user.recipe(target=str(user.elsewhere / "tiny-sequential.gguf"))
    return [("run", "r.yaml", *DRY), ("recipes", "check", "r.yaml")]


def shipped_recipe(user: Everyday) -> Lines:
    return [("run", "quickstart", *DRY), ("run", "quickstart", *DRY, "--prompts", user.home / "asked.txt")]


def texts_beside_a_recipe(user: Everyday) -> Lines:
    user.recipe(prompts=TEXTS[1])
    return [("run", "r.yaml", *DRY)]


def context_beside_a_recipe(user: Everyday) -> Lines:
    user.recipe(prompts=TEXTS[2])
    return [("run", "r.yaml", *DRY)]


def typed_settings(user: Everyday) -> Lines:
    user.recipe()
    return [("run", "r.yaml", *DRY, "--set", f"prompts.suite={user.home / 'asked.txt'}")]


def typed_in_its_place(user: Everyday) -> Lines:
    user.recipe(prompts=f"suite: '{user.home / 'asked.txt'}', limit: 1")
    return [("run", "r.yaml", *DRY, "--set", f"prompts.suite={user.home / 'asked.txt'}")]


def server_on_this_machine(user: Everyday) -> Lines:
    user.recipe(engine=f"{{kind: openai, url: '{user.listener.url}/v1'}}")
    return [("recipes", "check", "r.yaml"), ("run", "r.yaml", *DRY)]


def server_on_the_lan(user: Everyday) -> Lines:
    user.recipe(engine="{kind: openai, url: 'http://192.0.2.7:8000/v1'}")
    return [("recipes", "trust", "."), ("recipes", "check", "r.yaml")]


def server_with_a_key(user: Everyday) -> Lines:
    user.recipe(engine="{kind: openai, url: 'https://lan.example/v1', api_key_env: MY_KEY}")
    return [("recipes", "trust", "."), ("recipes", "check", "r.yaml")]


def own_build(user: Everyday) -> Lines:
    user.recipe()
    return [("run", "r.yaml", *DRY, "--engine-binary", user.build())]


def own_build_in_a_recipe(user: Everyday) -> Lines:
    user.recipe(engine=f"{{binary: '{user.build()}'}}")
    return [("run", "r.yaml", *DRY, "--engine-binary", user.build()), ("run", "r.yaml", *DRY)]


def options_of_the_engine(user: Everyday) -> Lines:
    user.recipe(engine="{args: [--no-warmup]}")
    typed = ("run", "r.yaml", *DRY, "--set", "engine.args=[--no-warmup]")
    return [typed, ("recipes", "trust", "."), ("run", "r.yaml", *DRY), ("recipes", "check", "r.yaml")]


def build_beside_a_recipe(user: Everyday) -> Lines:
    shutil.copytree(user.server.parent, "bin")
    user.recipe(engine="{binary: ./bin/llama-server}")
    return [("recipes", "trust", "."), ("run", "r.yaml", *DRY)]


WORK: list[Callable[[Everyday], Lines]] = [
    own_models, models_in_a_recipe, shipped_recipe, texts_beside_a_recipe, context_beside_a_recipe, typed_settings,
    typed_in_its_place, server_on_this_machine, server_on_the_lan, server_with_a_key, own_build, own_build_in_a_recipe,
    options_of_the_engine, build_beside_a_recipe,
]  # fmt: skip


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_everyday_lines_need_no_more(user: Everyday, work: Callable[[Everyday], Lines]) -> None:
    for line in work(user):
        done = benchctl(*line, MY_KEY="x")
        assert done.returncode == 0, (line, done.stdout, done.stderr)


def test_a_build_is_made_anew_every_day(user: Everyday) -> None:
    user.recipe(engine=f"{{binary: '{user.build()}'}}")
    assert benchctl("run", "r.yaml", *DRY, "--engine-binary", user.build()).returncode == 0
    for _day in range(2):
        with user.build().open("ab") as program:
            program.write(b"\0")
        assert benchctl("run", "r.yaml", *DRY).returncode == 0


@pytest.mark.parametrize(
    ("engine", "prompts", "named"),
    [
        ("{kind: openai, url: 'http://192.0.2.7:8000/v1'}", TEXTS[0], "engine.url: http://192.0.2.7:8000/v1"),
        ("{kind: openai, url: 'http://127.0.0.1:1/v1', api_key_env: MY_KEY}", TEXTS[0], "your variable MY_KEY"),
        ("{binary: './llama-server'}", TEXTS[0], "--engine-binary"),
        ("{}", "suite: ../asked.txt", "--prompts"),
        ("{}", f"{TEXTS[0]}, context: ../asked.txt", "prompts.context: "),
    ],
    ids=["server", "key", "program", "prompts", "context"],
)
def test_a_stranger_gets_none_of_it(user: Everyday, engine: str, prompts: str, named: str) -> None:
    mark = marking_program(Path.cwd() / "llama-server")
    user.recipe(engine=engine, prompts=prompts)
    done = benchctl("run", "r.yaml", "--dry-run", MY_KEY="x")
    assert done.returncode == 2, done.stdout
    assert not mark.exists()
    output = " ".join(done.stderr.split())
    assert named in output and "--trust-recipe" in output
