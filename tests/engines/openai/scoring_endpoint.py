"""A scripted endpoint that returns log-probabilities, in OpenAI's dialect with vLLM's extensions and in SGLang's.

Its model: to PROMPT it answers ANSWER, to anything else 7 for ever. Token 5 is second everywhere: 1.8 nats behind where
it decodes, 1.5 where it reads a sequence at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.engines.scripted import ScriptedHandler, listening

PROMPT = (1, 2, 3)
TEXT = "one two three"
ANSWER = tuple(range(10, 90))
BEST, SECOND = -0.2, 5


@dataclass
class ScoringScript:
    """What the endpoint does. `dialect`: `openai` or `sglang`; `fault`: what it lacks."""

    dialect: str = "openai"
    fault: str = ""
    ends_after: int = 10_000
    """Tokens of an answer, unless the server goes on past the end (SGLang's `ignore_eos`)."""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    url: str = ""


def next_token(tokens: Sequence[int]) -> int:
    """The greedy token after a sequence."""
    position = len(tokens) - len(PROMPT)
    along = tuple(tokens[:3]) == PROMPT and 0 <= position < len(ANSWER) and tuple(tokens[3:]) == ANSWER[:position]
    return ANSWER[position] if along else 7


def own_token(tokens: Sequence[int], position: int) -> int:
    """The model's token at a position of a sequence that it reads at once: it forgives what was before."""
    along = tuple(tokens[:3]) == PROMPT and position >= len(PROMPT)
    return ANSWER[position - len(PROMPT)] if along else 7


def decoded(prompt: Sequence[int], count: int) -> list[int]:
    """The greedy answer to a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def openai_reply(script: ScoringScript, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    if path == "/v1/chat/completions":
        return 200, {"choices": [{}], "prompt_token_ids": [1, 2, 3]}
    fault, text = script.fault, isinstance(body["prompt"], str)
    if body["echo"] and (fault == "refuses-echo" or (fault == "few-logprobs" and body["logprobs"] > 5)):
        return 400, {"error": {"message": "Only no echo is supported.", "code": 400}}
    if not text and fault == "no-id-prompts":
        return 400, {"error": {"message": "prompt must be a string", "code": 400}}
    prompt = list(PROMPT) if text else body["prompt"]
    answer = decoded(prompt, min(body["max_tokens"], script.ends_after))
    places: list[tuple[int, float | None, dict[int, float] | None]] = []
    if body["echo"] and fault != "ignores-echo":
        places.append((prompt[0], None, None))
        for position, token in enumerate(prompt[1:], start=1):
            likeliest_token = own_token(prompt, position)
            top = {likeliest_token: BEST, SECOND: BEST - 1.5}
            places.append((token, top.get(token, -9.0), top))
    places += [(token, BEST, {token: BEST, SECOND: BEST - 1.8}) for token in answer]

    def name(token: int) -> str:
        return f"<{token}>" if fault == "names-by-text" else f"token_id:{token}"

    logprobs: dict[str, Any] = {
        "tokens": [name(token) for token, _, _ in places],
        "token_logprobs": [likeliest_token for _, likeliest_token, _ in places],
        "top_logprobs": [top and {name(token): value for token, value in top.items()} for _, _, top in places],
    }
    if fault == "no-top":
        logprobs["top_logprobs"] = None
    if fault == "lacks-a-place" and not text:
        logprobs = {key: values[:-2] for key, values in logprobs.items()}
    finish = "length" if len(answer) == body["max_tokens"] else "stop"
    choice = {"finish_reason": finish, "logprobs": None if fault == "no-logprobs" else logprobs}
    return 200, {"choices": [choice], "usage": {"prompt_tokens": len(prompt)}}


def sglang_reply(script: ScoringScript, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    if path == "/tokenize":
        return 200, {"tokens": list(PROMPT), "count": 3}
    assert path == "/generate"
    assert body["return_logprob"] is True
    prompt, count = body["input_ids"], body["sampling_params"]["max_new_tokens"]
    meta: dict[str, Any] = {
        "output_token_logprobs": [[BEST, token, None] for token in decoded(prompt, count)],
        "output_top_logprobs": [[[BEST, token, None], [BEST - 1.8, SECOND, None]] for token in decoded(prompt, count)],
    }
    if (start := body.get("logprob_start_len", -1)) >= 0:
        token_logprobs, likeliest = [[None, prompt[start], None]], [None]
        for position, token in enumerate(prompt[start + 1 :], start=start + 1):
            top = {own_token(prompt, position): BEST, SECOND: BEST - 1.5}
            token_logprobs.append([top.get(token, -9.0), token, None])
            likeliest.append([[value, token_id, None] for token_id, value in top.items()])  # type: ignore[arg-type]
        if script.fault == "other-tokens":
            token_logprobs[1][1] = 4000
        cut = -1 if script.fault == "lacks-a-place" else None
        meta |= {"input_token_logprobs": token_logprobs[:cut], "input_top_logprobs": likeliest[:cut]}
    return 200, {} if script.fault == "no-logprobs" else {"meta_info": meta}


def handler_of(script: ScoringScript) -> type[ScriptedHandler]:
    class Handler(ScriptedHandler):
        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self.reply(200, {"data": [{"id": "m", "max_model_len": 120}]})
            elif self.path == "/server_info" and script.dialect == "sglang":
                algorithm = "EAGLE" if script.fault == "speculating" else None
                self.reply(200, {"version": "0.5.23", "speculative_algorithm": algorithm, "internal_states": []})
            else:
                self.reply(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            body = self.body()
            script.requests.append((self.path, body))
            reply = sglang_reply if script.dialect == "sglang" else openai_reply
            self.reply(*reply(script, self.path, body))

    return Handler


@contextmanager
def serving(script: ScoringScript) -> Iterator[ScoringScript]:
    """Run the endpoint in this process."""
    with listening(handler_of(script)) as script.url:
        yield script
