"""Answers of the real llama-server, read again by llama-replay in the steps they were made in."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from gguf import GGUFWriter

from benchctl.engines.base import Launch, Rendered
from benchctl.engines.llama_cpp import companion
from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.companion import no_companion
from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.engines.llama_cpp.probe import parse_help
from benchctl.engines.llama_cpp.replay import LlamaReplayer, sampling_args, target_launch, unreplayable
from benchctl.engines.llama_cpp.source import PINNED_COMMIT
from benchctl.engines.llama_cpp.toolchain import Toolchain
from benchctl.engines.scoring import ReplayingEngine
from benchctl.errors import EngineError
from benchctl.models.files import ResolvedPair
from benchctl.models.shipped import bundled_models
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import GREEDY, Arm, Sampling
from tests.engines.cells import HERE, arm_of, complete, resolved

HELP = (HERE / "data" / "help_current.txt").read_text()
CURRENT = parse_help(f"{HELP}\n-bs,   --backend-sampling               enable backend sampling (default: disabled)\n")
PROMPT = Prompt(prompt="The harbour was quiet that morning, and the boats lay still. One, two, three, four,")
SCHEMA = {"type": "object", "properties": {"town": {"type": "string"}, "boats": {"type": "integer"}}}
FORM = {"type": "json_schema", "json_schema": {"name": "harbour", "schema": SCHEMA | {"required": ["town", "boats"]}}}
CONSTRAINED = Sampling(max_tokens=48, presence_penalty=0.7, repeat_penalty=1.1, logit_bias={300: 2.5, 301: -100.0})


@dataclass(frozen=True)
class Answer:
    """An answer, and how it was made."""

    prompt: Rendered
    tokens: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]


Replays = Callable[..., tuple[list[Answer], LlamaReplayer]]


@pytest.fixture(scope="module")
def engine(llama_server: Path) -> LlamaCppEngine:
    return LlamaCppEngine(LlamaCppSpec(binary=str(llama_server), device="cpu", context=1024, threads=1))


@pytest.fixture
def replays(engine: LlamaCppEngine, tmp_path: Path) -> Iterator[Replays]:
    """Have an arm answer prompts; return the answers and a replayer for them."""
    replayers: list[LlamaReplayer] = []

    def run(
        arm: Arm, models: ResolvedPair, sampling: Sampling, prompts: Sequence[Prompt] = (PROMPT,)
    ) -> tuple[list[Answer], LlamaReplayer]:
        launch = engine.launch(arm, models)
        assert engine.no_replay(launch) is None
        server = engine.start(launch, tmp_path / "server.log")
        try:
            rendered = [replace(server.render(prompt), sampling=prompt.sampling) for prompt in prompts]
            settings = [sampling.model_copy(update=prompt.sampling) for prompt in rendered]
            completions = [complete(server, *pair) for pair in zip(rendered, settings, strict=True)]
        finally:
            server.stop()
        replayers.append(engine.start_replayer(engine.replay_launch(launch), tmp_path / "replay.log", sampling))
        answers = [
            Answer(prompt, answer.token_ids or (), answer.ledger.target_steps or ((0, 0),) * (answer.n_predicted - 1))
            for prompt, answer in zip(rendered, completions, strict=True)
        ]
        return answers, replayers[-1]

    yield run
    for replayer in replayers:
        replayer.stop()


@pytest.mark.engine
def test_the_adapter_replays(engine: LlamaCppEngine) -> None:
    assert isinstance(engine, ReplayingEngine)
    commit = engine.probe().commit
    assert commit and PINNED_COMMIT.startswith(commit)


@pytest.mark.engine
def test_a_hybrid_is_read_again_with_its_checkpoints_penalties_and_biases(
    replays: Replays, tiny_pair: ResolvedPair
) -> None:
    with_schema = PROMPT.model_copy(update={"response_format": FORM})
    settings = {"presence_penalty": 0.0, "repeat_penalty": 1.4, "logit_bias": {}, "grammar": "root ::= [a-z ]+"}
    prompts = [PROMPT, with_schema, PROMPT.model_copy(update=settings)]
    (answer, formed, own), replayer = replays(arm_of("draft-simple", max=4), tiny_pair, CONSTRAINED, prompts)
    assert any(len(step) > 2 for step in answer.steps), "no round was repeated from a checkpoint"
    assert replayer.replay(answer.prompt, answer.tokens, answer.steps) == []

    assert formed.tokens != answer.tokens and any(step[0] for step in formed.steps)
    assert replayer.replay(formed.prompt, formed.tokens, formed.steps) == []
    assert replayer.replay(replace(formed.prompt, settings={}), formed.tokens, formed.steps), "the schema decided it"
    (outside,) = replayer.replay(formed.prompt, (answer.tokens[0], *formed.tokens[1:]), formed.steps)
    assert (outside.index, outside.likeliest, outside.gap) == (0, formed.tokens[0], None)

    assert replayer.replay(own.prompt, own.tokens, own.steps) == [], "a prompt's own settings take the recipe's place"
    assert replayer.replay(replace(own.prompt, sampling={}), own.tokens, own.steps)

    index, token = 20, (answer.tokens[20] + 7) % 1000
    tampered = (*answer.tokens[:index], token, *answer.tokens[index + 1 :])
    deviating = replayer.replay(answer.prompt, tampered, answer.steps)
    assert (deviating[0].index, deviating[0].likeliest) == (index, answer.tokens[index])
    assert deviating[0].gap and deviating[0].gap > 0

    wrong: list[list[tuple[int, ...]]] = [
        [(4, 2), *answer.steps[1:]],
        [(4, 5)],
        [(0,)],
        [],
        [*answer.steps, (0, 0)],
        [(100000, 0)],
    ]
    for steps in wrong:
        with pytest.raises(EngineError, match="llama-replay: "):
            replayer.replay(answer.prompt, answer.tokens, steps)
    with pytest.raises(EngineError, match="token that the model has not"):
        replayer.replay(replace(answer.prompt, token_ids=(10**6,)), answer.tokens, answer.steps)
    assert replayer.replay(answer.prompt, answer.tokens, answer.steps) == []  # it goes on


@pytest.mark.engine
def test_noise_of_the_widths_is_none_in_the_widths_themselves(
    replays: Replays, llama_server: Path, tmp_path: Path
) -> None:
    """Penalties keep the answer among near-ties, and with them read token by token the target leaves it."""
    path = {model.name: model.path for model in bundled_models()}
    file = tmp_path / "q4_k.gguf"
    quantize = [*map(str, (llama_server.with_name("llama-quantize"), path["tiny-transformer"], file)), "Q4_K", "1"]
    subprocess.run(quantize, check=True, capture_output=True)
    models = ResolvedPair(resolved(file), resolved(path["tiny-transformer"]))
    sampling = Sampling(max_tokens=400, presence_penalty=2.0, frequency_penalty=2.0, ignore_eos=True)
    (answer,), replayer = replays(arm_of("draft-simple", max=6), models, sampling)
    assert replayer.replay(answer.prompt, answer.tokens, answer.steps) == []
    alone = replayer.replay(answer.prompt, answer.tokens, [(0, 0)] * (len(answer.tokens) - 1))
    assert alone or any("AMX" in line for line in replayer.log_tail(10_000))  # whose kernels know no width


@pytest.mark.engine
def test_a_head_that_reads_the_targets_states_is_read_again_with_its_snapshots(replays: Replays) -> None:
    path = {model.name: model.path for model in bundled_models()}
    models = ResolvedPair(resolved(path["tiny-sequential"]), None)
    (answer,), replayer = replays(arm_of("draft-mtp", max=3), models, Sampling(max_tokens=48))
    assert any(accepted < drafted for drafted, accepted, *_ in answer.steps)
    assert all(len(step) == 2 for step in answer.steps)
    assert any(
        "creating MTP draft context" in line for line in replayer.log_tail(10_000)
    )  # as the server's graph has it
    assert replayer.replay(answer.prompt, answer.tokens, answer.steps) == []


@pytest.mark.engine
def test_what_is_no_request_is_one_line_of_error(engine: LlamaCppEngine, tiny_pair: ResolvedPair) -> None:
    launch = engine.replay_launch(engine.launch(arm_of(), tiny_pair))
    program = engine.probe().binary
    assert program is not None
    good = {"prompt": [1, 5], "answer": [7], "steps": []}
    lines = ["{", "[1, 2]", "null", '{"prompt": 3}', "[" * 10_000, json.dumps({**good, "answer": [1e9]})]
    lines += [
        json.dumps({**good, "json_schema": {"type": "nonsense"}}),
        json.dumps({**good, "answer": [2**40]}),
        json.dumps({**good, "steps": [[[]]]}),
        json.dumps(good),
    ]
    done = subprocess.run(
        [program.with_name("llama-replay"), *launch.command(0)[1:], *sampling_args(GREEDY)],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=True,
        env=dict(launch.env),
    )
    ready, *results = map(json.loads, done.stdout.splitlines())
    assert ready["ready"] is True
    assert [list(result) for result in results] == [["error"]] * (len(lines) - 1) + [["tokens"]]


def test_arms_whose_drafts_leave_the_target_alone_share_its_command(tmp_path: Path) -> None:
    plain = Launch(("llama-server", "-m", "t", "-c", "9", "--spec-type", "none", "-fa", "on"), {})
    words = ["-m", "t", "-md", "d", "-c", "9", "-ngld", "0", "--spec-type", "draft-simple", "--spec-draft-n-max", "4"]
    drafting = Launch(("llama-server", *words, "-fa", "on"), {})
    assert target_launch(drafting, CURRENT) == target_launch(plain, CURRENT)
    assert target_launch(plain, CURRENT).argv == ("llama-server", "-m", "t", "-c", "9", "-fa", "on")
    head = Launch(("llama-server", "-m", "t", "--spec-type", "draft-eagle3", "-md", "d"), {})
    assert target_launch(head, CURRENT) == head


def test_what_cannot_be_replayed_is_a_sentence(tiny_target: Path, tmp_path: Path) -> None:
    alone = ("llama-server", "-m", str(tiny_target), "-np", "1")
    assert unreplayable(Launch(alone, {}), CURRENT, ()) is None
    assert "share its batches" in (unreplayable(Launch((*alone, "-np", "4"), {}), CURRENT, ()) or "")
    assert "no logits" in (unreplayable(Launch((*alone, "-bs"), {}), CURRENT, ()) or "")
    mixture = tmp_path / "mixture.gguf"
    writer = GGUFWriter(mixture, "qwen3moe")
    writer.add_expert_count(8)
    writer.add_expert_used_count(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    experts = ("llama-server", "-m", str(mixture), "-np", "1", "-ngl", "0")
    depth_6, depth_7 = (("--spec-type", "draft-simple", "--spec-draft-n-max", depth) for depth in "67")
    assert unreplayable(Launch((*experts, *depth_6), {}), CURRENT, ()) is None
    assert unreplayable(Launch((*experts, *depth_6), {}), CURRENT, ("Vulkan0: GPU",)) is None  # nothing is offloaded
    assert "expert" in (unreplayable(Launch((*experts, *depth_7), {}), CURRENT, ()) or "")
    assert "expert" in (unreplayable(Launch((*experts[:-1], "9", *depth_6), {}), CURRENT, ("Vulkan0: GPU",)) or "")
    server = tmp_path / "bin" / "llama-server"
    server.parent.mkdir()
    server.touch()
    assert "of commit abc1234" in (no_companion(server, "abc1234") or "")
    assert "do not lie beside it" in (no_companion(server, PINNED_COMMIT[:7]) or "")
    for name in ("libllama-common.so.0", "libllama.so.0", "libggml.so.0", "libggml-base.so.0"):
        (server.parent / name).touch()
    assert no_companion(server, PINNED_COMMIT[:7]) is None


def test_for_a_server_with_shared_libraries_it_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it loads the server's own, from its own folder, as backends that are loaded by name are looked for there."""
    server, calls = tmp_path / "bin" / "llama-server", tmp_path / "calls"
    server.parent.mkdir()
    for name in ("libllama-common.so.0", "libllama.so.0", "libggml.so.0", "libggml-base.so.0", "libggml-cuda.so"):
        (server.parent / name).write_text(name)
    compiler = write_script(
        tmp_path / "c++", f'echo "$@" >> {calls}; while [ "$1" != -o ]; do shift; done; echo > "$2"'
    )
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(companion, "find_toolchain", lambda _: Toolchain("", "", "", str(compiler), "1.0"))
    monkeypatch.setattr(companion, "fetch_sdist", lambda version, log: None)
    monkeypatch.setattr(companion, "extract_llama_cpp", lambda sdist, into: None)
    program = companion.build_companion(server)
    assert companion.build_companion(server) == program and os.access(program, os.X_OK)
    (line,) = calls.read_text().splitlines()
    assert all(f"{program.parent}/{name}" in line.split() for name in ("libllama.so.0", "libggml-base.so.0"))
    assert (program.parent / "libggml-cuda.so").read_text() == "libggml-cuda.so"
    (server.parent / "libllama.so.0").write_text("another build")
    assert companion.build_companion(server) != program

    compiler.write_text("#!/bin/sh\necho 'error: no such header'; exit 1\n")
    (server.parent / "libllama.so.0").write_text("a third")
    with pytest.raises(EngineError, match="could not be built") as caught:
        companion.build_companion(server)
    assert caught.value.log_tail == ("error: no such header",)


def write_script(file: Path, text: str) -> Path:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def test_sampling_is_set_by_flags() -> None:
    args = " ".join(sampling_args(CONSTRAINED))
    assert "--samplers penalties;top_k;temperature" in args
    assert "--logit-bias 300+2.5 --logit-bias 301-100.0" in args
    assert "--repeat-last-n 64" in args and "--presence-penalty 0.7" in args
    assert "--grammar" not in args and "--ignore-eos" not in args
    assert sampling_args(Sampling(grammar='root ::= "a b"'))[-2:] == ["--grammar", 'root ::= "a b"']
