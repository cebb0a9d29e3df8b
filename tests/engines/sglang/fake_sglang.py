"""A Python in which SGLang seems to be installed: it tells recorded facts, and serves in the shapes of SGLang's source.

`FAKE_FAULT` names a fault. Shapes: `http_server.py`, `tokenizer_manager.py` of SGLang 0.5.23.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.engines.scripted import ScriptedHandler, ScriptedServer

FAULT = os.environ.get("FAKE_FAULT", "")
FACTS = Path(os.environ.get("FAKE_FACTS", "facts.json"))
ANSWER = ["one", " two", " three", " four", " five"]


def option(name: str) -> str | None:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


def settings() -> dict[str, str]:
    """What `--config FILE` adds to the command line; such a file may be YAML, of which JSON is a part."""
    file = option("--config")
    if file is None:
        return {}
    assert file.endswith(".yaml")
    return dict(json.loads(Path(file).read_text()))


KEY = settings().get("api-key")


class Handler(ScriptedHandler):
    answered = False

    def do_GET(self) -> None:
        if not self.path.startswith(("/health", "/metrics")) and self.headers["Authorization"] != f"Bearer {KEY}":
            self.reply(401, {"error": "Unauthorized"})
        elif self.path == "/health":
            if os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION") != "0" or Handler.answered:
                os.abort()  # a check that generates, or one while answers are timed
            self.reply(503 if FAULT == "never-healthy" else 200, {})
        elif self.path == "/server_info" and FAULT != "no-info":
            algorithm = option("--speculative-algorithm")
            info: dict[str, Any] = {
                "version": "0.5.23",
                "model_path": "/elsewhere" if FAULT == "other-server" else option("--model-path"),
                "disable_radix_cache": "--disable-radix-cache" in sys.argv and FAULT != "cache-on",
                "speculative_algorithm": {"NEXTN": "EAGLE"}.get(algorithm or "", algorithm),
                "internal_states": [{"avg_spec_accept_length": 1.5}],
            }
            for name in ("num-steps", "eagle-topk", "num-draft-tokens"):
                value = option(f"--speculative-{name}")
                info[f"speculative_{name.replace('-', '_')}"] = None if value is None else int(value)
            if FAULT == "other-depth":
                info["speculative_num_draft_tokens"] = 99
            if FAULT == "not-speculating":
                info["speculative_algorithm"] = None
            if FAULT == "speculating":
                info["speculative_algorithm"] = "EAGLE"
            self.reply(200, info)
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = self.body()
        if self.headers["Authorization"] != f"Bearer {KEY}":
            self.reply(401, {"error": "Unauthorized"})
        elif self.path == "/tokenize":
            text = body.get("prompt") or json.dumps(body["messages"])
            self.reply(200, {"tokens": list(text.encode()), "count": len(text), "max_model_len": 99})
        elif self.path == "/detokenize":
            self.reply(200, {"text": bytes(body["tokens"]).decode()})
        elif FAULT == "http-400":
            self.reply(400, {"error": {"message": "The input is longer than the model's context length."}})
        else:
            Handler.answered = True
            self.generate(body)

    def step(self, count: int, finish: object = None, **meta: object) -> None:
        ids = [7, 8, 9] if FAULT == "takes-back" and count == 5 else list(range(1, count + 1))
        common = {
            "id": "x",
            "finish_reason": finish,
            "prompt_tokens": 3,
            "completion_tokens": len(ids),
            "cached_tokens": 0,
        }
        self.event(text="".join(ANSWER[:count]), output_ids=ids, meta_info=common | meta)

    def score(self, body: dict[str, Any]) -> None:
        """Count on from the last token, 1.5 nats ahead of 99."""
        tokens, count = body["input_ids"], body["sampling_params"]["max_new_tokens"]
        answer = [tokens[-1] + number for number in range(1, count + 1)]
        start = body.get("logprob_start_len", len(tokens))
        token_logprobs: list[list[Any]] = [[None, tokens[start - 1] if start else None, None]]
        token_logprobs += [[-0.2, token, None] for token in tokens[start + 1 :]]
        top = [[[-0.2, token, None], [-1.7, 99, None]] for token in tokens[start + 1 :]]
        meta = {
            "input_token_logprobs": token_logprobs,
            "input_top_logprobs": [None, *top],
            "output_token_logprobs": [[-0.2, token, None] for token in answer],
            "output_top_logprobs": [[[-0.2, token, None], [-1.7, 99, None]] for token in answer],
        }
        self.reply(200, {"text": "", "output_ids": answer, "meta_info": meta})

    def generate(self, body: dict[str, Any]) -> None:
        if body.get("return_logprob"):
            self.score(body)
            return
        assert set(body) == {"input_ids", "sampling_params", "stream"}
        self.begin_stream()
        self.step(1)
        self.step(3)  # two steps, or one that accepted, in one event
        if FAULT == "dies-mid-answer":
            print("[2026-11-21 10:00:00] Scheduler hit an exception: Traceback (most recent call last):")
            print("ModuleNotFoundError: No module named 'sgl_kernel.speculative'")
            print(
                "[2026-11-21 10:00:00] Received sigquit from a child process. It usually means the child failed.",
                flush=True,
            )
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "stalls":
            time.sleep(20)
        if FAULT == "error-event":
            error = {"message": "out of luck", "type": "invalid_request_error", "code": 400, "retryable": False}
            self.event(error=error)
            self.send(b"data: [DONE]\n\n")
            return
        speculation = {}
        if option("--speculative-algorithm") and FAULT != "nothing-verified":
            correct = 0 if FAULT == "nothing-accepted" else 2
            speculation = {
                "spec_accept_rate": correct / 8,
                "spec_accept_length": 2.5,
                "spec_num_correct_drafts": correct,
                "spec_num_proposed_drafts": 8,
                "spec_verify_ct": 2,
                "spec_correct_drafts_histogram": [1, 0, 1] if correct else [2],
            }
        cached = {"cached_tokens": 3} if FAULT == "cached" else {}
        finish: dict[str, object] = {"type": "length", "length": 5}
        if FAULT == "aborts":
            finish = {"type": "abort", "message": "the scheduler gave up"}
        if FAULT == "miscounts":
            cached = {"completion_tokens": 6}
        self.step(5, finish, e2e_latency=0.2, **cached, **speculation)
        self.end_stream()


def main() -> None:
    if sys.argv[1] == "-c":
        if FAULT == "not-installed":
            print("ModuleNotFoundError: No module named 'sglang'", file=sys.stderr)
            sys.exit(1)
        print("some chatter\n" + ("no json" if FAULT == "chatters" else FACTS.read_text()))
    elif FAULT == "exits-at-once":
        print("launch_server.py: error: unrecognized arguments: --frobnicate", file=sys.stderr)
        sys.exit(2)
    else:
        assert sys.argv[1:3] == ["-m", "sglang.launch_server"]
        assert not [name for name in os.environ if "SIMULATE_ACC" in name]
        print(f"[2026-11-21 10:00:00] server_args=ServerArgs(host='127.0.0.1', api_key={KEY!r}, seed=0)", flush=True)
        ScriptedServer(("127.0.0.1", int(option("--port") or 0)), Handler).serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()
