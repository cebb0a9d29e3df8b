"""The vLLM adapter: probe, check, command, start; and scoring, on a vLLM launched or running already.

A running vLLM is recognised by its metrics. It returns logprobs of generated tokens, and of prompt tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from benchctl.engines.base import Launch, Ledger, Scores
from benchctl.engines.common.drafts import since, step_ledger
from benchctl.engines.common.endpoint import (
    EndpointTarget,
    MetricsReading,
    Pages,
    Recognised,
    ServerFamily,
    TokenizingTarget,
    short_line,
)
from benchctl.engines.common.launched_server import LaunchedEngine, PackageProbe
from benchctl.engines.common.process import EngineProcess, engine_environment, free_port, make_access, refused_variables
from benchctl.engines.common.score import RequestScorer, usable_scores
from benchctl.engines.common.wire import id_named, id_of, logprob_of
from benchctl.engines.vllm import command
from benchctl.engines.vllm.adapter import ADAPTER, VllmSpec
from benchctl.engines.vllm.command import Package
from benchctl.engines.vllm.installation import SEARCH, probe_vllm
from benchctl.engines.vllm.server import VllmServer, scoring_body
from benchctl.errors import EngineError
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.models.folder_facts import folder_facts
from benchctl.recipes.schema import GREEDY, Arm, Recipe, Sampling
from benchctl.recipes.speculation import Speculation

MAX_LOGPROBS = 2000
"""Of a scorer: at a fork the arm's token may be far down the list."""


class VllmEngine(LaunchedEngine[VllmSpec]):
    """Runs `vllm serve`; see `benchctl.engines.base.Engine`."""

    model_format = ADAPTER.model_format
    title = "vLLM"
    search = SEARCH

    @cached_property
    def _probe(self) -> PackageProbe[Package]:
        return probe_vllm(self._found, self._spec.env)

    def check(self, recipe: Recipe, models: ResolvedPair) -> Sequence[str]:
        """Refuse what this vLLM cannot do, all of it at once. Raises UsageError; returns warnings."""
        package = self._probe.package
        problems = [f"engine.env: {text}" for text in refused_variables(self._spec.env, command.REFUSED_VARIABLES)]
        problems += [f"engine.args: {text}" for text in command.argument_problems(self._spec.args, package.options)]
        problems += [
            *self._unfit(models.target),
            *command.target_problems(package, models.target),
            *command.missing_options(package),
        ]
        for arm in recipe.arms:
            here = command.argument_problems(arm.args, package.options)
            if arm.speculation is not None:
                here += command.speculation_problems(arm.speculation, package, models)
            problems += [f"arm {arm.name}: {text}" for text in here]
        self._refuse(problems)
        speculates = any(arm.speculation is not None for arm in recipe.arms)
        warnings = command.hybrid_warnings(package, models.target) if speculates else []
        if self._spec.threads is not None and not package.cpu:
            warnings.append("engine.threads has no effect on vLLM on an accelerator.")
        return warnings

    def _unfit(self, target: ResolvedModel) -> Iterator[str]:
        requested, platform = self._spec.device, self._probe.package.platform
        if requested not in ("auto", platform):
            yield f"engine.device: this vLLM runs on {platform}, but the recipe requests {requested}."
        longest = folder_facts(target.path)["context_length"]
        if isinstance(longest, int) and self._spec.context > longest:
            more = f"{self._spec.context} is more than the {longest} tokens that the target was made for"
            yield f"engine.context: {more}."

    def search_space(self, models: ResolvedPair) -> Sequence[Speculation]:
        """Return the settings worth trying; see `benchctl.engines.base.TunableEngine`."""
        return command.worth_trying(self._probe.package, models)

    def launch(self, arm: Arm, models: ResolvedPair) -> Launch:
        """Return the command line and the whole environment of a cell."""
        probe = self._probe
        settings = command.own_settings(cpu=probe.package.cpu, prefix=probe.package.prefix, threads=self._spec.threads)
        argv = command.command_line(probe.program, probe.package, self._spec, arm, models)
        env = engine_environment(os.environ, {**settings, **self._spec.env})
        return Launch(argv, env, set_by_us=(*settings, *self._spec.env), overlapping=arm.overlapping)

    def start(self, launch: Launch, log_path: Path) -> VllmServer:
        """Start vLLM and wait until it is healthy. Raises EngineError (`launch`, `health`)."""
        model = launch.argv[2]
        if not (Path(model) / "config.json").is_file():  # vLLM would report it as a name on the hub
            raise EngineError(f"There is no model in {model}.", kind="launch", fix="It must hold config.json.")
        access, port = make_access(by_socket="--uds" in (self._probe.package.options or {})), free_port()
        argv = [str(port) if argument == "{port}" else argument for argument in launch.argv]
        if access.socket_path is not None:
            argv += ["--uds", str(access.socket_path)]  # host and port are then unused
        # Its processes talk over sockets in a folder, which killed ones leave behind.
        env = {**launch.env, "VLLM_RPC_BASE_PATH": str(access.folder), "VLLM_API_KEY": access.key}
        process = EngineProcess(argv, env, log_path, scratch=access.folder)
        server = VllmServer(
            process,
            log_path,
            access.url(port),
            self._spec,
            model=model,
            method=command.requested_method(argv),
            overlapping=launch.overlapping,
            access=access,
        )
        self._healthy(server)
        process.remember_shared_memory()
        return server

    def start_scorer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> VllmScorer:
        """Start the target alone for scoring; `sampling` changes nothing: vLLM goes on past the end of an answer."""
        del sampling
        argv = (*launch.argv, "--max-logprobs", str(MAX_LOGPROBS))
        vocabulary = folder_facts(Path(launch.argv[2]))["vocab_size"]
        server = self.start(Launch(argv, launch.env, launch.set_by_us), log_path)
        return VllmScorer(server, argv, vocabulary if isinstance(vocabulary, int) else MAX_LOGPROBS)


_MARK = "token_id:"


class VllmScorer(RequestScorer):
    """A vLLM that scores; see `benchctl.engines.common.score`."""

    def _prefill(self, tokens: Sequence[int], start: int, top: int) -> list[Scores]:
        (choice,) = self._post(tokens, 1, 1, {"prompt_logprobs": top})["choices"]
        likeliest = [
            {id_named(token): logprob_of(figures["logprob"]) for token, figures in place.items()}
            for place in choice["prompt_logprobs"][start:]
        ]
        return [usable_scores(logprobs, len(tokens), least=2) for logprobs in likeliest]

    def _decode(self, prompt: Sequence[int], tokens: int, top: int) -> list[tuple[int, Scores]]:
        (choice,) = self._post(prompt, tokens, top, {})["choices"]
        likeliest = [
            {id_named(name.removeprefix(_MARK)): logprob_of(value) for name, value in place.items()}
            for place in choice["logprobs"]["top_logprobs"]
        ]
        scores = [usable_scores(logprobs, len(prompt)) for logprobs in likeliest]
        ids = [id_of(token) for token in choice["token_ids"]]
        return list(zip(ids, scores, strict=True)) if len(ids) == tokens else []

    def _post(self, prompt: Sequence[int], tokens: int, top: int, more: Mapping[str, Any]) -> Mapping[str, Any]:
        body = scoring_body(prompt, tokens=tokens, top=top) | {"model": self._server.model, **more}
        return self._server.http.post("/v1/completions", body, timeout_s=self._server.timeout_s)


MOST_LOGPROBS = 20
"""Log-probabilities at a position, unless the server was started with another `--max-logprobs`."""


def _metrics(pages: Pages) -> MetricsReading | None:
    return pages.metrics("vllm", "vllm:generation_tokens_total")


def _recognise(pages: Pages) -> Recognised | None:
    reading = _metrics(pages)
    if reading is None:
        return None
    version = short_line(pages.object("/version").get("version"))
    # vLLM has the counters of speculation exactly where speculation is on.
    speculates = reading.counters.rounds is not None or reading.counters.drafted is not None
    return Recognised(version, speculates, reading, (f"GET /version: vLLM {version}", str(reading)))


def _ledger(server: Recognised, extra: Mapping[str, Any], before: Ledger, after: Ledger) -> Ledger:
    del server
    metrics = extra.get("metrics")
    found = step_ledger(metrics) if isinstance(metrics, dict) else Ledger()
    if found != Ledger():
        return found
    return since(before, after)


def _scorer(target: EndpointTarget) -> VllmScorer:
    return VllmScorer(TokenizingTarget.of(target), (), MOST_LOGPROBS)


FAMILY = ServerFamily(_recognise, _ledger, _metrics, _scorer)
