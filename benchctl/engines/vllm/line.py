"""How a command line of vLLM's server is read as a recipe."""

from __future__ import annotations

import json

from benchctl.engines.vllm.command import METHODS, RESERVED
from benchctl.errors import UsageError
from benchctl.recipes.engine_line import EngineLine, LineForm, options, source_of
from benchctl.recipes.problems import quoted

_RUNNER = "left out, since benchctl measures generated text"
_KEYS = f"""
models.target.source: --model
engine.context: --max-model-len
engine.dtype: --dtype
engine.max_num_seqs: --max-num-seqs
arms[].speculation: --speculative-config -sc
speculation.type: --spec-method
models.draft.source: --speculative-model --spec-model
speculation.max: --num-speculative-tokens --spec-tokens
{_RUNNER}: --task --runner
"""
_SET = "benchctl sets it"
_LEFT_OUT = f"""
{_SET}: --uvicorn-log-level --enable-log-requests --disable-log-requests --no-enable-log-requests --seed
answers are measured without a cache (engine.prefix_caching): --enable-prefix-caching --no-enable-prefix-caching
"""
_NO_TEXT = "A server that is started so generates no text, and nothing can be measured."
_KEY = "A key must not stand in a line, which is recorded."
_TYPES = {method: name for name, method in METHODS.items()}
_IN_CONFIG = {"method": "speculation.type", "model": "models.draft.source", "num_speculative_tokens": "speculation.max"}


def _settle(line: EngineLine) -> None:
    """Write the JSON of `--speculative-config` as keys of the recipe. Raises UsageError for what is none."""
    values = line.values
    if values.pop(_RUNNER, "auto") not in ("auto", "generate"):
        raise UsageError(_NO_TEXT, where="--task, --runner", fix="Leave it out of the line.")
    text = values.pop("arms[].speculation", None)
    if text is not None:
        try:
            config = json.loads(str(text))
        except (ValueError, RecursionError):
            config = None
        if not isinstance(config, dict):
            where = "--speculative-config"
            raise UsageError("Expected a JSON object.", where=where, fix="In a shell it stands in single quotes.")
        for name, value in config.items():
            if value is None:
                continue
            if "." in name or (name in ("method", "model") and not isinstance(value, str)):
                raise UsageError(f"Unexpected {quoted(name)}: {quoted(value)}.", where="--speculative-config")
            values[_IN_CONFIG.get(name, f"speculation.options.{name}")] = value
    if isinstance(values.get("models.draft.source"), str):
        values["models.draft.source"] = source_of(values["models.draft.source"])
    draft = values.get("models.draft.source")
    kind = values.get("speculation.type") or (None if draft is None else "draft_model")
    if draft in ("ngram", "[ngram]"):
        kind = "ngram"
        del values["models.draft.source"]
    if kind is not None:
        values["speculation.type"] = _TYPES.get(str(kind), str(kind))


LINE = LineForm(
    programs=("vllm", "vllm-openai", "vllm.entrypoints.openai.api_server"),
    keys=options(_KEYS) | {"": "models.target.source"},
    left_out={name: _SET for name, instead in RESERVED.items() if "(benchctl" in instead} | options(_LEFT_OUT),
    refused=options(f"{_KEY}: --api-key --hf-token"),
    settle=_settle,
    first_words=("serve",),
)
