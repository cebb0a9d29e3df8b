"""The SGLang adapter: find, probe, check, command, start, score.

The `binary` of SGLang is the Python that it is installed in: the option `--engine-binary`, the recipe's
`engine.binary`, `$BENCHCTL_SGLANG`, else the Python that runs benchctl.

`/generate` returns logprobs of generated tokens and of input tokens; those of the input stand in `meta_info` from token
`logprob_start_len` on, and the first of them is always null (SGLang 0.5.23, `scheduler_output_processor_mixin.py`); a
prefix from the cache is used up to that token alone.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from benchctl.engines.base import Capabilities, Launch, Ledger
from benchctl.engines.common.drafts import verified_ledger
from benchctl.engines.common.endpoint import (
    EndpointTarget,
    Pages,
    Recognised,
    ServerFamily,
    TokenizingTarget,
    short_line,
)
from benchctl.engines.common.launched_server import LaunchedEngine, Probe
from benchctl.engines.common.log import make_private
from benchctl.engines.common.process import EngineProcess, engine_environment, free_port, make_access
from benchctl.engines.common.programs import FoundBinary
from benchctl.engines.common.python_environment import Question, named_types
from benchctl.engines.common.score import RequestScorer, usable_scores
from benchctl.engines.common.wire import id_of, logprob_of
from benchctl.engines.in_use import Pressure
from benchctl.engines.registry import FoundEngine, Search
from benchctl.engines.scoring import Scores
from benchctl.engines.sglang import command
from benchctl.engines.sglang.adapter import ADAPTER, SglangSpec
from benchctl.engines.sglang.command import DEVICES, Package
from benchctl.engines.sglang.server import ONLY_THE_MAXIMUM, SglangServer, drafts_are_counted
from benchctl.errors import EngineError
from benchctl.models.files import ResolvedPair
from benchctl.recipes.options import read_flags
from benchctl.recipes.schema import GREEDY, Arm, Recipe, Sampling
from benchctl.recipes.speculation import Speculation

_CONFIG = "--config"


VARIABLE = "BENCHCTL_SGLANG"
_SCRIPT = Path(__file__).with_name("ask_package.py")
_FIX = f"Name the Python that SGLang is installed in: engine.binary, --engine-binary, or {VARIABLE}."


def _others() -> list[FoundBinary]:
    installed = importlib.util.find_spec("sglang") is not None
    return [FoundBinary(Path(sys.executable), "Python package")] if installed else []


SEARCH = Search("sglang", "SGLang", VARIABLE, "bin/python", _FIX, _others)


class SglangEngine(LaunchedEngine[SglangSpec]):
    """Runs `python -m sglang.launch_server`; see `benchctl.engines.base.Engine`."""

    model_format = ADAPTER.model_format
    title = "SGLang"
    search = SEARCH
    poll_s = 0.25

    @cached_property
    def _probe(self) -> Probe[Package]:
        return probe_sglang(self._binary.path, self._binary.found_in, self._spec.env)

    def check(self, recipe: Recipe, models: ResolvedPair) -> Sequence[str]:
        """Refuse what this SGLang cannot do, all of it at once. Raises UsageError; returns warnings."""
        package, warnings = self._probe.facts, []
        problems = self._recipe_problems(
            recipe.arms,
            command.REFUSED_VARIABLES,
            lambda args: command.argument_problems(args, package.options),
            lambda arm: command.speculation_problems(arm.speculation, package, models) if arm.speculation else (),
        )
        if self._spec.device not in ("auto", *DEVICES):
            problems.append(f"engine.device: SGLang is started on {', '.join(DEVICES)}, not on {self._spec.device}.")
        self._refuse(problems)
        if self._spec.threads is not None:
            warnings.append("engine.threads has no effect on SGLang.")
        if _CONFIG not in package.options:
            warnings.append("This SGLang takes no settings from a file, so it listens on loopback without a key.")
        return warnings

    def with_schedule(self, setting: Speculation, steps: Sequence[tuple[int, int, int]]) -> Speculation | None:
        """Return the setting by batch size; see `benchctl.engines.base.LoadSchedulingEngine`."""
        return command.with_schedule(setting, steps, self._probe.facts)

    def has_schedule(self, setting: Speculation) -> bool:
        """Whether SGLang chooses the depth; see `benchctl.engines.base.LoadSchedulingEngine`."""
        return command.has_schedule(setting)

    def launch(self, arm: Arm, models: ResolvedPair, *, in_use: bool = False) -> Launch:
        """Return the command line and the whole environment of a cell; `in_use`: with SGLang's own defaults."""
        probe, cpu = self._probe, self._spec.device == "cpu"
        argv = command.command_line(probe.program, probe.facts, self._spec, arm, models, in_use=in_use)
        settings = command.own_settings(cpu=cpu) | self._spec.env | command.simulated_acceptance(arm.speculation)
        env = engine_environment(os.environ, settings)
        return Launch(argv, env, set_by_us=tuple(settings), overlapping=in_use or arm.overlapping)

    unprovoked: Mapping[str, str] = MappingProxyType(
        dict.fromkeys(
            ("completions", *get_args(Pressure)), "benchctl has no arguments of SGLang that would put it under pressure"
        )
        | {"constraint": "benchctl sends SGLang no schemas"}
    )

    def launch_in_use(self, arm: Arm, models: ResolvedPair) -> Launch:
        """See `benchctl.engines.in_use.EngineInUse`. Never run: mapped from SGLang's source."""
        return self.launch(arm, models, in_use=True)

    def start(self, launch: Launch, log_path: Path) -> SglangServer:
        """Start SGLang and wait until it is healthy. Raises EngineError (`launch`, `health`)."""
        access, port = make_access(by_socket=False), free_port()
        argv = launch.command(port)
        if _CONFIG in self._probe.facts.options:  # the option --api-key could be read in the list of processes
            settings = access.folder / "settings.yaml"
            settings.write_text(json.dumps({"api-key": access.key}))
            argv += [_CONFIG, str(settings)]
        make_private(log_path)  # SGLang logs all of its settings
        process = EngineProcess(argv, launch.env, log_path, access)
        options = {name.replace("-", "_"): value or "" for name, value in read_flags(argv)}
        server = SglangServer(process, access.url(port), self._spec, options)
        try:
            return self._healthy(server)  # passive here (see `OWN_SETTINGS`)
        except EngineError as error:
            error.log_tail = server.log_tail()  # without the key now
            raise

    def start_scorer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> SglangScorer:
        """Start the target alone for scoring; `sampling` changes nothing: SGLang goes on past the end of an answer."""
        del sampling
        caching = self._spec.prefix_caching  # what is in the cache has no log-probabilities
        argv = (*launch.argv, "--disable-radix-cache") if caching else launch.argv
        return SglangScorer(self.start(replace(launch, argv=argv), log_path), argv, MOST_LOGPROBS)


def probe_sglang(python: Path, found_in: str, added: Mapping[str, str] = MappingProxyType({})) -> Probe[Package]:
    """Probe what an installed SGLang can do; `added` is the recipe's `engine.env`. Raises EngineError (`launch`)."""
    env = engine_environment(os.environ, {**command.own_settings(cpu=False), **added})
    question = Question("sglang", python, python, _SCRIPT, env, added)

    def read(facts: dict[str, Any]) -> Probe[Package]:
        package = Package(
            version=str(facts["version"]),
            algorithms=tuple(facts["algorithms"]),
            options=dict(facts["options"]),
        )
        capabilities = Capabilities(
            kind="sglang",
            binary=python,
            found_in=found_in,
            version=f"SGLang {package.version}",
            build=package.version,
            commit=None,
            speculation_types=named_types(command.ALGORITHMS, package.algorithms),
            details={
                "python": facts.get("python"),
                "algorithms": list(package.algorithms),
                "flags": sorted(package.options),
                # Of the list of files that were installed, which holds every file's hash.
                "sha256": facts.get("record_sha256"),
            },
        )
        return Probe(capabilities, package)

    return question.answered("This SGLang", _FIX, read)


def inventory() -> list[FoundEngine]:
    """Return where SGLang is; importing it takes 10 s and more, so it is not probed."""
    return SEARCH.inventory(_listed, f"install it and name its Python: {VARIABLE}; see `benchctl docs engines`")


def _listed(python: FoundBinary, runs: bool) -> FoundEngine:
    version = importlib.metadata.version("sglang") if python.found_in == "Python package" else None
    return FoundEngine("sglang", python.found_in, str(python.path), runs, version)


MOST_LOGPROBS = 100
"""At a position. SGLang has no limit of its own, and fails where it is more than the vocabulary."""
_CLIPPED = 0
"""How SGLang names an input token beyond the vocabulary that it knows, such as an image's."""


class SglangScorer(RequestScorer):
    """An SGLang that scores; see `benchctl.engines.common.score`."""

    def _prefill(self, tokens: Sequence[int], start: int, top: int) -> list[Scores]:
        meta = self._post(tokens, 1, top, {"logprob_start_len": start - 1})
        token_logprobs, likeliest = meta["input_token_logprobs"][1:], meta["input_top_logprobs"][1:]
        scores = []
        for token, (logprob, known_as, *_), entries in zip(tokens[start:], token_logprobs, likeliest, strict=True):
            if known_as not in (token, _CLIPPED):
                raise ValueError("another token")
            scores.append(usable_scores(_logprobs(entries) | {token: logprob_of(logprob)}, len(tokens), min_tokens=2))
        return scores

    def _decode(self, prompt: Sequence[int], tokens: int, top: int) -> list[tuple[int, Scores]]:
        meta = self._post(prompt, tokens, top, {})
        decoded = [
            (id_of(chosen[1]), usable_scores(_logprobs(likeliest), len(prompt)))
            for chosen, likeliest in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True)
        ]
        return decoded if len(decoded) == tokens else []

    def _post(self, prompt: Sequence[int], tokens: int, top: int, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {**scoring_body(prompt, tokens=tokens, top=top), **fields}
        meta: Mapping[str, Any] = self._server.http.post("/generate", body, timeout_s=self._server.timeout_s)[
            "meta_info"
        ]
        return meta


def scoring_body(token_ids: Sequence[int], *, tokens: int, top: int) -> dict[str, Any]:
    """Return the JSON of a request for `tokens` greedy tokens and, of raw logits, the `top` logprobs at each."""
    return {
        "input_ids": list(token_ids),
        "sampling_params": {
            "temperature": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_new_tokens": tokens,
            "ignore_eos": True,
        },
        "return_logprob": True,
        "top_logprobs_num": top,
        "return_text_in_logprobs": False,
        "stream": False,
    }


def _logprobs(entries: Sequence[Sequence[Any]]) -> dict[int, float]:
    """Read `[logprob, id, text]` of each token."""
    return {id_of(entry[1]): logprob_of(entry[0]) for entry in entries}


def _recognise(pages: Pages) -> Recognised | None:
    info = pages.object("/server_info")
    if "speculative_algorithm" not in info and "internal_states" not in info:
        return None
    algorithm, version = info.get("speculative_algorithm"), short_line(info.get("version"))
    reported, states = "speculative_algorithm" in info, info.get("internal_states")
    state_list = states if isinstance(states, list) else []
    lengths = [state.get("avg_spec_accept_length") for state in state_list[:64] if isinstance(state, dict)]
    evidence = [
        f"GET /server_info: SGLang {version}, speculative_algorithm = {short_line(algorithm) if reported else '?'}",
        f"GET /server_info: avg_spec_accept_length = {', '.join(map(str, lengths)) or 'not reported'}"[:200],
    ]
    counted = drafts_are_counted(info)
    if algorithm and not counted:
        evidence.append(ONLY_THE_MAXIMUM)
    return Recognised(version, bool(algorithm) if reported else None, None, tuple(evidence), counted)


def _ledger(server: Recognised, extra: Mapping[str, Any], before: Ledger, after: Ledger) -> Ledger:
    del before, after  # it has no counters of speculation
    extension = extra.get("sglext")
    details = extension.get("spec_tokens_details") if isinstance(extension, dict) else None
    details = details[0] if isinstance(details, list) and details else details
    return verified_ledger(details, counted=server.drafts_counted) if isinstance(details, dict) else Ledger()


def _scorer(target: EndpointTarget) -> SglangScorer:
    return SglangScorer(TokenizingTarget.of(target), (), MOST_LOGPROBS)


FAMILY = ServerFamily(_recognise, _ledger, scorer=_scorer)
