"""The adapter for endpoints: find out what each URL is, refuse what it is not known to support, talk to it, score.

An endpoint that is not recognised is scored by OpenAI's own interface: `echo` with `logprobs` on `/completions`. Tokens
must be named by id: several tokens spell the same, and a text says nothing of the ids that a prompt would need. Servers
return ids where `return_tokens_as_token_ids` asks for them (vLLM's extension). Whether an endpoint does all of this is
tried once, before anything is scored. https://platform.openai.com/docs/api-reference/completions
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from benchctl.engines.base import Capabilities, Launch, Rendered
from benchctl.engines.common.completion_stream import first_choice
from benchctl.engines.common.endpoint import LEAST_CONTEXT, EndpointTarget, as_sent
from benchctl.engines.common.http import HttpClient
from benchctl.engines.common.log import make_private
from benchctl.engines.common.score import RequestScorer, usable_scores
from benchctl.engines.common.wire import count_in, id_marked, ids_in, logprob_of, protocol_error
from benchctl.engines.in_use import Pressure
from benchctl.engines.openai.adapter import ADAPTER, OpenAiSpec
from benchctl.engines.openai.discovery import (
    Address,
    ApiKey,
    Endpoint,
    check_key,
    discover,
    list_names,
    parse_address,
    read_key,
)
from benchctl.engines.openai.server import EndpointLaunch, EndpointServer, unsupported
from benchctl.engines.registry import FoundEngine
from benchctl.engines.scoring import Scorer, Scores
from benchctl.errors import EngineError, UsageError
from benchctl.models.files import ResolvedPair
from benchctl.prompts.suite import IMAGES, Prompt
from benchctl.recipes.schema import GREEDY, Arm, Recipe, Sampling
from benchctl.text import one_line

_LOGPROBS = (20, 5)
"""At a position: vLLM's default limit, then OpenAI's own."""
_TRIED_WITH = "The harbour lay quiet, and the boats were"


class EchoTarget(EndpointTarget):
    """An endpoint that returns log-probabilities of prompt tokens."""

    def complete(self, prompt: str | Sequence[int], tokens: int, logprobs: int, *, echo: bool) -> dict[str, Any]:
        """Return the answer to a greedy request. Raises EngineError."""
        body = {
            "model": self.model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "echo": echo,
            "logprobs": logprobs,
            "return_tokens_as_token_ids": True,
            "stream": False,
        }
        return self.http.post(f"{self.api}/completions", body, timeout_s=self.timeout_s)

    def render(self, prompt: Prompt) -> Rendered:
        """Return the tokens of a prompt as the endpoint reads it; the text is what is sent. Raises EngineError."""
        ids: list[int] | None
        if prompt.prompt is not None:
            ids = _prompt_ids(self.complete(prompt.prompt, 1, 1, echo=True))
        else:
            body = {"model": self.model, **self.chat(prompt), "max_tokens": 1, "temperature": 0, "stream": False}
            body["return_token_ids"] = True
            answer = self.http.post(f"{self.api}/chat/completions", body, timeout_s=self.timeout_s)
            ids = ids_in(answer.get("prompt_token_ids"))
            if not ids:
                raise protocol_error("The endpoint returned no token ids for the prompt.")
        return Rendered(as_sent(prompt), tuple(ids))


class EchoScorer(RequestScorer):
    """An endpoint that scores; see `benchctl.engines.common.score`."""

    def __init__(self, target: EchoTarget, most_logprobs: int) -> None:
        super().__init__(target, (), most_logprobs)
        self._target = target

    def _prefill(self, tokens: Sequence[int], start: int, top: int) -> list[Scores]:
        places = _places(self._target.complete(tokens, 1, top, echo=True), len(tokens), min_tokens=2)
        if [token for token, _ in places[: len(tokens)]] != list(tokens):
            return []
        return [scores for _, scores in places[start : len(tokens)] if scores is not None]

    def _decode(self, prompt: Sequence[int], tokens: int, top: int) -> list[tuple[int, Scores]]:
        answer = self._target.complete(prompt, tokens, top, echo=False)
        decoded = [(token, scores) for token, scores in _places(answer, len(prompt)) if scores is not None]
        ended = first_choice(answer).get("finish_reason") == "stop"
        return decoded if len(decoded) == tokens or (ended and len(decoded) < tokens) else []


def echo_scorer(target: EndpointTarget, where: str) -> EchoScorer:
    """Return a scorer on an endpoint, once a short prompt was scored, as its text and as its tokens.

    Raises UsageError where the endpoint does not do it, and EngineError where it is gone.
    """
    echoing, refusal = EchoTarget.of(target), ""
    for max_logprobs in _LOGPROBS:
        scorer = EchoScorer(echoing, max_logprobs)
        try:
            ids = _prompt_ids(echoing.complete(_TRIED_WITH, 1, max_logprobs, echo=True))
            scorer.score_answer(ids[:1], ids[1:], max_logprobs)
            scorer.read_prompt(ids, max_logprobs)
        except EngineError as error:
            if error.kind not in ("http", "protocol"):
                raise
            refusal = error.what.rstrip(".")
        else:
            return scorer
    raise UsageError(
        f"the baseline's endpoint returns no log-probabilities of prompt tokens, by their ids ({refusal})",
        where=where,
        fix="/completions has to take `echo`, `logprobs`, `return_tokens_as_token_ids` and a prompt of token ids.",
    )


def _prompt_ids(answer: Mapping[str, Any]) -> list[int]:
    """Return the ids of the prompt of an answer to `echo`. Raises EngineError where they are not all there."""
    usage = answer.get("usage")
    count = count_in(usage.get("prompt_tokens"), 2**31) if isinstance(usage, dict) else None
    ids = [token for token, _ in _places(answer, count or 0)][:count]
    if not count or len(ids) < count:
        raise protocol_error("The endpoint returned no token ids for the prompt.")
    return ids


def _places(answer: Mapping[str, Any], evaluated: int, *, min_tokens: int = 1) -> list[tuple[int, Scores | None]]:
    """Read (token, scores before it: none for a prompt's first) of every position; empty where any is malformed."""
    positions: list[tuple[int, Scores | None]] = []
    try:
        logprobs = first_choice(answer)["logprobs"]
        columns = (logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"])
        for name, token_logprob, likeliest in zip(*columns, strict=True):
            token = id_marked(name)
            if token_logprob is None and not positions:
                positions.append((token, None))
                continue
            by_id = {id_marked(text): logprob_of(value) for text, value in likeliest.items()}
            by_id[token] = logprob_of(token_logprob)
            positions.append((token, usable_scores(by_id, evaluated, min_tokens=min_tokens)))
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
    return positions


_STANDARD_FIELDS = frozenset({"tools", "tool_choice", "response_format", "stop", "logprobs"})
"""The fields of OpenAI's chat API. Recognised servers take variables of the chat template, too."""


class OpenAiEngine:
    """Measures endpoints that run already; see `benchctl.engines.base.Engine`."""

    model_format = ADAPTER.model_format

    def __init__(self, spec: OpenAiSpec, *, binary: str | None = None) -> None:
        if binary is not None:
            raise UsageError("An endpoint has no binary here.", where="--engine-binary", fix="Leave it out.")
        self._spec = spec
        self._inspected: dict[str | None, Endpoint] = {}

    def locate(self) -> None:
        """There is none: an endpoint runs already."""

    def probe(self) -> Capabilities:
        """Inspect the endpoint of the recipe. Raises EngineError when there is no answer, UsageError."""
        silent = Endpoint(version=None, speculates=None, metrics=None, evidence=())
        endpoint = self._inspect(self._spec.url, "engine.url") if self._spec.url else silent
        return Capabilities(
            kind="openai",
            binary=None,
            found_in=self._spec.url or "the arms' URLs",
            version=endpoint.version,
            build=None,
            commit=None,
            speculation_types=(),
            request_fields=_STANDARD_FIELDS | {IMAGES} | ({"chat_template_kwargs"} if endpoint.family else frozenset()),
            details={"server": endpoint.family, "models": list(endpoint.models or ())}
            | ({"prompt_cache": False} if endpoint.family == "llama.cpp" else {}),
        )

    def check(self, recipe: Recipe, models: ResolvedPair) -> Sequence[str]:
        """Refuse what these endpoints do not support. Raises UsageError, EngineError; returns warnings."""
        problems, names, warnings = [], {}, []
        for arm in recipe.arms:
            if arm.args:
                problems.append(f"arm {arm.name}: args are for engines that benchctl launches.")
            endpoint = self._inspect(self._url(arm), f"arm {arm.name}")
            problems += [f"arm {arm.name}: {text}" for text in unsupported(recipe.sampling_of(arm), endpoint.family)]
            names[arm.name] = self._model(models, endpoint, arm)
            if endpoint.family is None:
                warnings.append(f"Arm {arm.name}: its endpoint is none of the servers that benchctl recognises.")
        problems += _same_endpoint(recipe, {arm.name: self._url(arm) for arm in recipe.arms})
        if problems:
            raise UsageError("\n".join(problems), where="engine.kind: openai")
        if len(set(names.values())) > 1:
            served = "; ".join(f"{arm}: {one_line(name, 80)}" for arm, name in names.items())
            warnings.append(f"The endpoints serve models of different names ({served}); only equal models compare.")
        if (key := self._key()).is_no_secret:
            warnings.append(f"The key in {key.variable} is too short to be removed from logs: it counts as no secret.")
        return list(dict.fromkeys(warnings))

    def launch(self, arm: Arm, models: ResolvedPair) -> Launch:
        """Return where the endpoint of an arm is and with which settings it is used; nothing is launched."""
        url = self._url(arm)
        model, speculation = self._model(models, self._inspect(url, f"arm {arm.name}"), arm), None
        if arm.speculation is not None:
            depth = "" if arm.speculation.max is None else f" up to {arm.speculation.max} tokens"
            speculation = f"{' + '.join(arm.speculation.types)}{depth}"
        return EndpointLaunch((), {}, url=url, overlapping=arm.overlapping, model=model, speculation=speculation)

    unprovoked: Mapping[str, str] = MappingProxyType(
        dict.fromkeys(
            ("completions", *get_args(Pressure)), "benchctl does not start an endpoint, so it cannot give it arguments"
        )
        | {"long": "an endpoint does not report its context"}
    )

    def launch_in_use(self, arm: Arm, models: ResolvedPair) -> Launch:
        """Return the same endpoint, which has its own defaults already, for several requests at a time."""
        return self.launch(arm.model_copy(update={"concurrency": max(2, arm.concurrency)}), models)

    def tool(self, name: str) -> Path:
        """There is none."""
        raise EngineError(f"An endpoint has no program {name}.", kind="launch", fix="Name a model that it serves.")

    def start(self, launch: Launch, log_path: Path) -> EndpointServer:
        """Inspect the endpoint again. Raises EngineError when it is gone; there is no wait."""
        assert isinstance(launch, EndpointLaunch)
        make_private(log_path)
        address, client = self._connect(launch.url, "url")
        try:
            return EndpointServer(client, address, launch, self._spec, log_path)
        except BaseException:
            client.close()
            raise

    def start_scorer(self, launch: Launch, log_path: Path, sampling: Sampling = GREEDY) -> Scorer:
        """Read log-probabilities from the baseline's endpoint; see `benchctl.engines.scoring.ScoringEngine`.

        Raises UsageError where it returns none for prompt tokens, or speculates itself, EngineError where it is gone.
        """
        assert isinstance(launch, EndpointLaunch)
        del log_path
        endpoint, where = self._inspect(launch.url, "the baseline"), str(launch.url)
        if endpoint.speculates:
            raise UsageError("the baseline's endpoint speculates: it is not the target alone", where=where)
        if sampling.ignore_eos and endpoint.family == "llama.cpp":
            message = "the recipe ignores end-of-sequence tokens, and an endpoint does not report which those are"
            raise UsageError(message, where=where)
        address, client = self._connect(launch.url, "url")
        timeout_s = self._spec.request_timeout_s
        context = endpoint.context or LEAST_CONTEXT
        target = EndpointTarget(client, address.api, launch.model, context, timeout_s)
        family = endpoint.reader
        if family is not None and family.scorer is not None:
            return family.scorer(target)
        try:
            return echo_scorer(target, where)
        except BaseException:
            client.close()
            raise

    def _url(self, arm: Arm) -> str | None:
        return arm.url or self._spec.url

    def _key(self) -> ApiKey:
        return read_key(self._spec.api_key_env, os.environ)

    def _connect(self, url: str | None, where: str) -> tuple[Address, HttpClient]:
        """Return an endpoint's address and a client for it. Raises UsageError, without showing a password."""
        address, key = parse_address(url, where), self._key()
        check_key(key, address)

        def broken(message: str) -> EngineError:
            if address.takes_connections():
                message = f"{message}, but the endpoint still accepts connections."
                return protocol_error(message, "Read the endpoint's own log.")
            fix = "Check that the endpoint still runs."
            return EngineError(f"{message}.", kind="crash", where=address.root, fix=fix)

        return address, HttpClient(address.root, headers=key.headers, broken=broken, redact=key.redact)

    def _inspect(self, url: str | None, where: str) -> Endpoint:
        """Inspect an endpoint once a command."""
        if url not in self._inspected:
            address, client = self._connect(url, where)
            try:
                self._inspected[url] = discover(client, address)
            except EngineError as error:
                kind = "launch" if error.kind == "crash" else error.kind
                raise EngineError(error.what, kind=kind, where=where, fix=error.fix) from error
            finally:
                client.close()
        return self._inspected[url]

    def _model(self, models: ResolvedPair, endpoint: Endpoint, arm: Arm) -> str:
        """Return the name that the recipe gives, or the only name that the endpoint serves."""
        name, served = models.target.source.removeprefix("served:"), endpoint.models
        if name and (served is None or name in served):
            return name
        if not name and served and len(served) == 1:
            return served[0]
        message = f"The endpoint does not serve '{one_line(name, 120)}'." if name else "No model is named."
        listed = list_names(served or ()) or "nothing"
        raise UsageError(
            message, where=f"models.target (arm {arm.name})", fix=f"Name one, served:NAME; it lists {listed}."
        )


def _same_endpoint(recipe: Recipe, urls: dict[str, str | None]) -> list[str]:
    """Return a problem for arms that use one endpoint with different speculation: it speculates in one way, or not at
    all."""
    first: dict[str, Arm] = {}
    problems = []
    for arm in recipe.arms:
        first_arm = first.setdefault(parse_address(urls[arm.name], f"arm {arm.name}").api, arm)
        if arm.speculation == first_arm.speculation:
            continue
        problems.append(
            f"arm {arm.name}: it has the same URL as {first_arm.name}, with which it does not share its speculation; "
            "launch a second server and give the arm its url."
        )
    return problems


def inventory() -> list[FoundEngine]:
    """Return that there is nothing to find: the recipe names the endpoint."""
    return [FoundEngine("openai", hint="an endpoint that already runs: the recipe names it, nothing is installed")]
