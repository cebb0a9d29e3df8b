"""How much the states alone move the target's probabilities: measured on the control, which does not speculate."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benchctl.engines.base import Rendered
from benchctl.engines.in_use import ListedToken, ServerInUse
from benchctl.experiments.stress.plan import CLIENTS
from benchctl.experiments.stress.send import LIKELIEST
from benchctl.recipes.schema import Sampling


def moved(before: Sequence[ListedToken], after: Sequence[ListedToken]) -> list[float]:
    """Return by how many nats the margin between the two likeliest tokens of `before` moved, token by token.

    Up to the first token that differs, whose margin still belongs to the same prefix.
    """
    moves: list[float] = []
    for old, new in zip(before, after, strict=False):
        pair = sorted(old.likeliest, key=lambda token: -old.likeliest[token])[:2]
        if len(pair) == 2 and {*pair} <= new.likeliest.keys():
            margins = (side.likeliest[pair[0]] - side.likeliest[pair[1]] for side in (old, new))
            moves.append(abs(next(margins) - next(margins)))
        if old.token != new.token:
            break
    return moves


async def measure_noise(
    server: ServerInUse, prompts: Sequence[Rendered], sampling: Sampling
) -> tuple[dict[str, float], int]:
    """Return by state the largest move of a margin, in nats, and how many tokens each was measured on, at least.

    again: the same prompt once more; cached: from the prompt cache; crowd: several at a time. Nothing where the server
    lists no log probabilities. Raises EngineError.
    """

    async def answers(*, cached: bool, clients: int = 1) -> list[list[ListedToken] | None]:
        free = asyncio.Semaphore(clients)

        async def answer(prompt: Rendered) -> list[ListedToken] | None:
            async with free:
                return await server.listed(server.in_use(prompt, cached=cached), sampling, LIKELIEST)

        return list(await asyncio.gather(*map(answer, prompts)))

    cold = await answers(cached=False)
    if None in cold:
        return {}, 0
    again = await answers(cached=False)
    await answers(cached=True)
    states = {"again": again, "cached": await answers(cached=True)}
    if server.slots != 1:
        states["crowd"] = await answers(cached=False, clients=CLIENTS)
    moves = {
        name: [move for pair in zip(cold, state, strict=True) for move in moved(*(side or [] for side in pair))]
        for name, state in states.items()
    }
    largest = {name: max(values) for name, values in moves.items() if values}
    return largest, min((len(moves[name]) for name in largest), default=0)
