"""Which parts of the model the rounds of a traced run drafted without: `logs/CELL.rounds.jsonl`, added up.

docs/self-speculation.md has the keys of a line. What the file says is an engine's: lines that do not fit are left out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchctl.data.manifest import Manifest
from benchctl.data.record import Record

_PART = re.compile(r"\d{1,4}\.(attention|recurrent|mlp|layer)", re.ASCII)


@dataclass(frozen=True)
class LeftOut:
    """The rounds of an arm in a range of contexts."""

    arm: str
    context: int
    """Tokens before the round, at most; more than half as many."""
    rounds: int
    """Rounds in which parts of the model drafted."""
    layers: int
    """Layers of the model; where that is not recorded, the highest number in the traces."""
    times: dict[str, int]
    """Rounds that drafted without a part, by its name, such as `3.attention`; `3.layer`: without all of the layer."""


class _Line(msgspec.Struct):
    answer: int
    context: int
    drafted: int
    left_out: list[str] | None = None


def read_left_out(
    folder: Path, manifest: Manifest, records: Iterable[Record], rejected: Set[tuple[int, str, int]]
) -> list[LeftOut]:
    """Return what the rounds of a run left out, by arm and context; nothing where none was traced.

    `rejected`: (block, arm, attempt) of processes that do not count. Warm-ups do not, either: the first answers of a
    process, as many as it has among the `records`; nor does its canary, the last answer.
    """
    traced = {file.name: file for file in (folder / "logs").glob("*.rounds.jsonl") if file.is_file()}
    if not traced:
        return []
    warm_ups = Counter((record.block, record.label, record.attempt) for record in records if record.phase == "warmup")
    rounds: Counter[tuple[str, int]] = Counter()
    times: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for cell in manifest.cells:
        file = traced.get(f"{Path(cell.log).stem}.rounds.jsonl")
        process = (cell.block, cell.arm, cell.attempt)
        if file is None or process in rejected:
            continue
        lines = list(_lines(file))
        asked_again = cell.canary is not None and cell.canary.error is None
        last = max((line.answer for line in lines), default=0) if asked_again else None
        for line in lines:
            counts = line.answer >= warm_ups[process] and line.answer != last
            if counts and line.drafted and line.left_out is not None:
                key = cell.arm, 1 << max(0, line.context - 1).bit_length()
                rounds[key] += 1
                times[key].update(name for name in set(line.left_out) if _PART.fullmatch(name))
    layers = _layers(manifest) if rounds else {}
    return [
        LeftOut(arm, context, count, max(layers[arm], _seen(times[arm, context])), dict(times[arm, context]))
        for (arm, context), count in sorted(rounds.items(), key=lambda counted: counted[0][1])
    ]


def _lines(file: Path) -> Iterator[_Line]:
    decoder = msgspec.json.Decoder(_Line)
    with file.open("rb") as lines:
        for line in lines:
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError:
                continue


def _layers(manifest: Manifest) -> dict[str, int]:
    """Return the layers of each arm's target; 0 where they are not recorded."""
    targets = {setup.name: setup.target for setup in manifest.setups}
    layers_of = {arm.name: targets.get(arm.setup or "", manifest.target).facts.get("layers") for arm in manifest.arms}
    return {name: layers if isinstance(layers, int) else 0 for name, layers in layers_of.items()}


def _seen(times: Counter[str]) -> int:
    return 1 + max((int(name.partition(".")[0]) for name in times), default=-1)
