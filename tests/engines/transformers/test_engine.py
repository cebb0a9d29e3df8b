"""What the adapter refuses before anything is loaded, and the command line that it writes. Needs no torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchctl.engines.base import Capabilities, Ledger
from benchctl.engines.common.drafts import Tally
from benchctl.engines.common.launched_server import Probe
from benchctl.engines.transformers import engine as find
from benchctl.engines.transformers.adapter import TransformersSpec
from benchctl.engines.transformers.engine import TransformersEngine
from benchctl.engines.transformers.server import SERVER, attest, contradiction, launch_cause, requested_speculation
from benchctl.engines.transformers.speculation import worth_trying
from benchctl.errors import EngineError, UsageError
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.recipes.schema import Arm
from tests.engines.cells import arm_of, recipe_of

Check = Callable[..., list[str]]


def spec_of(**keys: Any) -> TransformersSpec:
    return TransformersSpec.model_validate({"kind": "transformers", "device": "cpu", "context": 512, **keys})


def engine_of(**keys: Any) -> TransformersEngine:
    """An engine that was asked already: it has a CPU alone."""
    engine = TransformersEngine(spec_of(**keys))
    capabilities = Capabilities("transformers", Path("/python"), "recipe", "transformers 5.19.0", "5.19.0", None, ())
    engine.__dict__["_probe"] = Probe(capabilities, {"devices": ("cpu",), "drafters": ()})
    return engine


def pair(target: Path, draft: Path | None = None) -> ResolvedPair:
    models = [ResolvedModel(str(folder), (), folder=folder) for folder in (target, draft) if folder]
    return ResolvedPair(models[0], models[1] if draft else None)


@pytest.fixture
def refused(folder_of: Callable[[str], Path]) -> Check:
    """The lines with which a recipe is refused; empty where it is not."""

    def check(arm: Arm, model: str | Path = "tiny-hybrid", draft: str | None = None, **keys: Any) -> list[str]:
        engine, folder = engine_of(**keys), model if isinstance(model, Path) else folder_of(model)
        models = pair(folder, folder_of(draft) if draft else None)
        try:
            engine.check(recipe_of(arm, engine=spec_of(**keys), draft=draft is not None), models)
        except UsageError as error:
            return error.what.splitlines()
        return []

    return check


@pytest.mark.parametrize(
    ("model", "arm"),
    [
        ("tiny-hybrid", arm_of()),
        ("tiny-hybrid", arm_of("self-ssm", max=4)),
        ("tiny-sequential", arm_of("self-linear", max=4, options={"mlp": False})),
        ("tiny-transformer", arm_of("self-layerskip", max=4, options={"skip": 0.25})),
        ("tiny-transformer", arm_of("self-early-exit", max=4, options={"exit_layer": 2})),
        ("tiny-hybrid", arm_of("self-skip", max=4, options={"layers": [1], "attention": [2], "mlp": [0, 2]})),
        ("tiny-transformer", arm_of("prompt-lookup", max=4, size_n=3)),
        ("tiny-transformer", arm_of("ngram-simple", size_m=4)),
        ("tiny-transformer", arm_of("early-exit", max=2)),
        ("tiny-hybrid", arm_of("self-swift", max=4, options={"skip": 0.3, "window": 16, "seed": 3})),
        ("tiny-sequential", arm_of("self-clasp", max=4, options={"interval": 8})),
        ("tiny-transformer", arm_of("self-del", max=4, options={"decay": 0.9})),
        ("tiny-hybrid", arm_of("self-knapspec", max=4, options={"interval": 64, "cosine": 0.5, "may_pause": True})),
    ],
)
def test_what_runs(refused: Check, model: str, arm: Arm) -> None:
    assert refused(arm, model) == []


@pytest.mark.parametrize(
    ("model", "arm", "message"),
    [
        ("tiny-sequential", arm_of("self-ssm", max=4), "has no recurrence beside its attention"),
        ("tiny-hybrid", arm_of("self-linear", max=4), "has no recurrent layers between attention layers"),
        ("tiny-hybrid", arm_of("prompt-lookup", max=4), "keeps a recurrent state, which transformers"),
        ("tiny-hybrid", arm_of("self-ssm"), "give `max`"),
        ("tiny-hybrid", arm_of("self-ssm", max=4, p_min=0.5), "`p_min` has no effect on self-ssm"),
        ("tiny-hybrid", arm_of("self-smm", max=4), "Did you mean"),
        (
            "tiny-hybrid",
            arm_of("self-knapspec", max=4, options={"interval": 0}),
            "a whole number from 1 to 10000, not 0",
        ),
        ("tiny-hybrid", arm_of("self-knapspec", max=4, options={"may_pause": 1}), "is true or false"),
        ("tiny-hybrid", arm_of("self-swift", max=4, options={"skips": 0.5}), "Did you mean"),
        ("tiny-hybrid", arm_of(["self-ssm", "self-layerskip"], max=4), "one method at a time"),
        ("tiny-hybrid", arm_of("self-layerskip", max=4, options={"skip": 2}), "a number from 0.01 to 0.99, not 2"),
        ("tiny-hybrid", arm_of("self-layerskip", max=4, options={"skipped": 0.5}), "has no such option"),
        ("tiny-hybrid", arm_of("self-early-exit", max=4, options={"exit_layer": 4}), "beyond the last"),
        ("tiny-hybrid", arm_of("self-skip", max=4, options={"layers": 3}), "a list of whole numbers from 0"),
        ("tiny-hybrid", arm_of("self-skip", max=4, options={"layers": ["3"]}), "a list of whole numbers from 0"),
        ("tiny-hybrid", arm_of("self-skip", max=4, options={"layers": [9]}), "options.layers: 9 is beyond"),
        ("tiny-hybrid", arm_of("self-skip", max=4), "needs a list of layers"),
        ("tiny-hybrid", arm_of("early-exit", max=4), "keeps a recurrent state, which transformers"),
        ("tiny-transformer", arm_of("draft-mtp", max=2), "multi-token head"),
        ("tiny-sequential", arm_of("mtp", max=2), "Qwen3.5 keeps a state"),
        ("tiny-transformer", arm_of("assisted", max=2), "needs a draft model"),
        ("tiny-transformer", arm_of("self-kangaroo", max=2), "needs a draft model"),
        ("tiny-hybrid", arm_of(args=["--x"]), "nothing can be added"),
        ("tiny-hybrid", Arm(name="arm", concurrency=2), "one request at a time"),
        ("tiny-hybrid", Arm(name="arm", rate=1.0), "one request at a time"),
    ],
)
def test_what_is_refused_of_an_arm(refused: Check, model: str, arm: Arm, message: str) -> None:
    (line,) = refused(arm, model)
    assert message in line
    assert line.startswith("arm arm: ")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"device": "cuda"}, "engine.device: this PyTorch has no cuda; it has cpu"),
        ({"context": 1_000_000}, "engine.context: 1000000 is more than"),
        ({"args": ["--device"]}, "engine.args"),
        ({"env": {"HF_TOKEN": "x"}}, "engine.env: HF_TOKEN looks like a secret"),
    ],
)
def test_what_is_refused_of_the_engine(refused: Check, keys: dict[str, Any], message: str) -> None:
    (line,) = refused(arm_of(), **keys)
    assert line.startswith(message)


def test_what_is_refused_of_a_model(
    refused: Check, folder_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folder_of("tiny-hybrid"), folder)
    (folder / "tokenizer.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "novel", "auto_map": {"x": "y.Z"}}))
    monkeypatch.setattr("psutil.virtual_memory", type("Memory", (), {"available": 2**20}))
    message = "\n".join(refused(arm_of(), folder, dtype="float32"))
    assert "has no tokenizer" in message
    assert "brings code of its own" in message
    assert "its weights need 0.0 GiB" in message
    assert "brings code" not in "\n".join(refused(arm_of(), folder, remote_code=True))


@pytest.mark.parametrize(("device", "count"), [("auto", 1), ("cuda", 1), ("cpu", 0)])
def test_times_on_a_gpu_are_said_to_be_those_of_python(
    folder_of: Callable[[str], Path], device: str, count: int
) -> None:
    """On an H100 a model of 6.8 MB kept one core of the processor busy, and took 5 to 7 ms a token."""
    engine = engine_of(device=device)
    engine.__dict__["_probe"].facts["devices"] = ("cpu", "cuda")
    warnings = engine.check(recipe_of(arm_of(), engine=spec_of(device=device)), pair(folder_of("tiny-hybrid")))
    assert ["starts every kernel from Python" in text for text in warnings] == [True] * count


def test_the_command_line_is_explicit(folder_of: Callable[[str], Path]) -> None:
    folder = folder_of("tiny-transformer")
    assert "--trace" not in engine_of().launch(arm_of(), pair(folder)).argv
    assert "{trace}" in engine_of(trace=True).launch(arm_of(), pair(folder)).argv
    engine = engine_of(dtype="float32", threads=2)
    launch = engine.launch(arm_of("ngram-simple", max=4, size_n=3), pair(folder))
    assert launch.argv[:3] == ("/python", "-I", str(SERVER / "run.py"))
    assert "{port}" in launch.argv
    assert requested_speculation(launch.argv) == {"type": "prompt-lookup", "max": 4, "options": {"size_n": 3}}
    assert launch.env["HF_HUB_OFFLINE"] == "1"
    assert requested_speculation(engine.launch(arm_of(), pair(folder)).argv) is None
    drafted = engine.launch(arm_of("assisted", max=2), pair(folder, folder)).argv
    assert drafted[-2:] == ("--draft", str(folder))


def test_why_the_server_ended() -> None:
    log = ["Traceback", "benchctl-serve: error: There is no CUDA device. | Write `device: cpu`.", "exit code 2"]
    assert launch_cause(log) == ("There is no CUDA device.", "Write `device: cpu`.")
    assert launch_cause(["torch.OutOfMemoryError: CUDA out of memory"]) is not None
    assert launch_cause(["all is well"]) is None


def test_an_attestation_fails_closed() -> None:
    info = {"model": "/m", "dtype": "float32", "speculation": {"type": "self-ssm", "max": 4}}
    requested, tally = {"type": "self-ssm", "max": 4}, Tally()

    def state(**changed: Any) -> str:
        arguments = {
            "info": info,
            "model": "/m",
            "dtype": "float32",
            "speculation": requested,
            "contradiction": None,
            **changed,
        }
        return attest(arguments.pop("info"), tally, arguments.pop("contradiction"), **arguments).state

    assert state() == "idle"
    assert state(info={}) == "failed"
    assert state(model="/other") == "failed"
    assert state(dtype="bfloat16") == "failed"
    assert state(speculation={**requested, "max": 2}) == "failed"
    assert state(speculation=None) == "failed"
    assert state(contradiction="more came than was counted") == "failed"
    assert state(info={**info, "speculation": None}, speculation=None) == "off"
    tally.add(20, Ledger(drafted=0, accepted=0, rounds=0, plain_steps=19))
    assert state() == "failed"
    tally.add(20, Ledger(drafted=12, accepted=9, rounds=4, plain_steps=6))
    assert state() == "active"


def test_counts_that_do_not_add_up_to_the_tokens_fail() -> None:
    ledger = Ledger(drafted=12, accepted=9, rounds=4, plain_steps=6)
    assert contradiction(ledger, 20, loose=False) is None
    assert contradiction(ledger, 19, loose=True) is None
    assert "19 tokens came" in str(contradiction(ledger, 19, loose=False))
    assert contradiction(Ledger(drafted=1, accepted=2, rounds=1, plain_steps=0), 4, loose=False) is not None


def test_which_python_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path))
    monkeypatch.delenv(find.VARIABLE, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineError, match="no transformers was found"):
        find.SEARCH.find()
    assert find.inventory()[0].hint is not None
    python = find.environment().folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert find.environment().installed() is None  # an installation that was interrupted
    (find.environment().folder / "benchctl.json").write_text("{}")
    assert find.SEARCH.find().found_in == "bundled"
    monkeypatch.setenv(find.VARIABLE, "sh")
    assert find.SEARCH.find().found_in == "environment"
    assert find.SEARCH.find("sh").found_in == "recipe"
    with pytest.raises(UsageError, match="no such program"):
        find.SEARCH.find("/nowhere/python")


def test_what_is_worth_trying_is_what_the_target_can_do(folder_of: Callable[[str], Path]) -> None:
    hybrid, attention = folder_of("tiny-hybrid"), folder_of("tiny-transformer")
    assert {setting.type for setting in worth_trying(pair(hybrid))} == {"self-ssm", "self-layerskip"}
    types = [setting.type for setting in worth_trying(pair(attention, attention))]
    assert types[:2] == ["assisted", "prompt-lookup"] and "self-ssm" not in types
    assert "assisted" not in {setting.type for setting in worth_trying(pair(attention))}


def test_a_target_whose_parts_are_not_known_runs_what_needs_none(
    refused: Check, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folder_of("tiny-transformer"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "opt"}))
    for arm in (arm_of(), arm_of("prompt-lookup", max=4)):
        assert refused(arm, folder) == []
    for name in ("self-layerskip", "early-exit", "self-ssm"):
        (line,) = refused(arm_of(name, max=4), folder)
        assert "known: falcon_h1" in line
