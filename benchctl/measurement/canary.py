"""The canary of a cell: its first prompt once more at its end, so that what earlier requests left behind shows.

It is not measured. It is no record; the manifest's entry of the cell says what came of it.
"""

from __future__ import annotations

import asyncio

from benchctl.analysis.answers import common_length
from benchctl.data.cell import Canary
from benchctl.data.identity import home_relative
from benchctl.data.record import Record
from benchctl.engines.base import Completion, Rendered, Server
from benchctl.errors import EngineError
from benchctl.recipes.schema import Sampling


def is_greedy(sampling: Sampling) -> bool:
    """Whether the likeliest token is chosen every time."""
    return sampling.temperature == 0 or sampling.top_k == 1


def ask_again(
    server: Server, first: Record, prompt: Rendered, sampling: Sampling, *, exact: bool, requests: int
) -> tuple[Canary, Completion | None]:
    """Ask `prompt`, whose answer is in `first`, once more after `requests` others; return the answer, too, if any.

    `exact`: whether the answers must be equal. A request that fails is no error here: the canary has the reason.
    """
    canary = Canary(task=first.task, prompt_idx=first.prompt_idx, requests=requests, exact=exact)
    try:
        again = asyncio.run(server.complete(prompt, sampling))
    except EngineError as failure:
        canary.error = home_relative(failure.what)
        return canary, None
    text = first.content or ""
    canary.same = text == again.text and (None in (first.token_ids, again.token_ids) or _ids(first) == _ids(again))
    if not canary.same:
        by_token = first.token_ids is not None and again.token_ids is not None
        before, after = (_ids(first), _ids(again)) if by_token else (text, again.text)
        canary.index = None if before == after else common_length(before, after)
        canary.text = again.text
    return canary, again


def _ids(answer: Record | Completion) -> list[int]:
    return list(answer.token_ids or ())
