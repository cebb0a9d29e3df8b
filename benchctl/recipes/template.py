"""A new recipe, written out with comments for the person who will edit it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from benchctl.errors import UsageError
from benchctl.recipes.adapters import Adapter, kinds, registered
from benchctl.recipes.from_options import DEPTHS, MAX_TOKENS, TASKS_LIMIT
from benchctl.recipes.problems import did_you_mean, quoted
from benchctl.recipes.schema import MAX_NAME, NAME_PATTERN
from benchctl.recipes.speculation import NEEDS_DRAFT_MODEL, SPECULATION_TYPES, TAKEN_BY

__all__ = ["new_recipe"]


def new_recipe(
    name: str,
    *,
    engine: str | None,
    target: str,
    draft: str | None,
    types: Sequence[str],
    depths: Sequence[int] = DEPTHS,
    suite: str | None = None,
) -> str:
    """Return the YAML of a recipe with a baseline and an arm (or a matrix of arms) for each speculation type.

    Raises UsageError for a name, engine or type that no recipe may have, and for a missing draft model.
    """
    engine = engine or kinds()[0]
    _check(name, engine, draft, types)
    limit = f"limit: {TASKS_LIMIT}                 # at most so many prompts of each task; left out: all of them"
    if suite is not None:  # of one's own prompts all are used
        limit = f"# {limit}"
    suite = suite or ("tiny.json" if target.startswith("bundled:") else "default")  # a tiny model knows its own alone
    adapter = registered().adapters[engine]
    return f"""\
# yaml-language-server: $schema=recipe.schema.json
# Editors complete and check this file once the schema lies beside it:
#   benchctl recipes schema -o recipe.schema.json
name: {_text(name)}
description: Does speculative decoding pay for this pair on this machine?

engine:
  kind: {_text(engine)}
{_engine_lines(adapter)}{_model_lines(adapter, target, draft)}
prompts:
  suite: {_text(suite):<18}# a path, or the name of a shipped suite
  # tasks: [code]          # all of the suite's tasks when left out
  {limit}

sampling:
  temperature: 0           # greedy: the only setting in which outputs can be compared token by token
  max_tokens: {MAX_TOKENS}

blocks: 5                  # fresh processes of each arm; fewer than 3 give no interval between runs

arms:
  - name: baseline         # the target alone; every arm is compared with it
{"".join(_arm(kind, depths) for kind in types)}"""


def _engine_lines(adapter: Adapter) -> str:
    lines = ["  context: 4096            # tokens"]
    if adapter.launched:
        lines.append("  device: auto             # auto | cpu | cuda | metal")
        lines.append("  # threads: 8             # null: the engine's cores")
    lines += [f"  {line}" for line in adapter.example]
    return "".join(f"{line}\n" for line in lines)


def _model_lines(adapter: Adapter, target: str, draft: str | None) -> str:
    if adapter.model_format == "served" and not target.startswith("served:"):
        return ""  # an endpoint knows what it serves
    lines = ["", "models:                    # source: a path | hf:ORG/REPO[/FILE] | bundled:NAME"]
    lines += ["  target:", f"    source: {_text(target)}"]
    if draft is not None:
        lines += ["  draft:", f"    source: {_text(draft)}"]
    return "".join(f"{line}\n" for line in lines)


def _arm(kind: str, depths: Sequence[int]) -> str:
    short = kind.replace("-", "_")
    if kind in TAKEN_BY["p_min"]:  # the types that draft token by token: depth is the question
        return f"""\
  - name: {short}_d{{depth}}
    speculation: {{type: {kind}, max: "{{depth}}"}}
    matrix: {{depth: {list(depths)}}}
"""
    return f"""\
  - name: {short}
    speculation: {{type: {kind}}}
"""


def _check(name: str, engine: str, draft: str | None, types: Sequence[str]) -> None:
    if not re.fullmatch(NAME_PATTERN, name) or len(name) > MAX_NAME:
        raise UsageError(
            f"{quoted(name)} is not a name for a recipe.", fix="Use letters, digits, '_', '.', '+' and '-'."
        )
    _check_name(engine, kinds(), "engine")
    for kind in types:
        _check_name(kind, SPECULATION_TYPES, "speculation type")
    needy = [kind for kind in types if kind in NEEDS_DRAFT_MODEL]
    if needy and draft is None:
        raise UsageError(f"{needy[0]} needs a draft model.", fix="Name it: --draft SOURCE")


def _check_name(name: str, known: Sequence[str], what: str) -> None:
    if name not in known:
        fix = did_you_mean(name, known).strip() or f"Known: {', '.join(known)}."
        raise UsageError(f"There is no {what} {quoted(name)}.", fix=fix)


def _text(value: str) -> str:
    """Return text as YAML: plain where that is safe, else in double quotes (JSON's are YAML's)."""
    plain = value.replace("/", "").replace(":", "").replace("-", "").replace(".", "").replace("_", "")
    safe = plain.isascii() and plain.isalnum() and not value[0].isdigit() and value[0] not in "-:." and value[-1] != ":"
    return value if safe and value.lower() not in {"true", "false", "null"} else json.dumps(value)
