"""Every stored file of a run, changed in thousands of ways: each change alters no conclusion, or is named.

A hundred seeded mutations always, a thousand more that are slow; `BENCHCTL_MUTATIONS=20000` tries so many from a new
seed, and `BENCHCTL_LONG_RUN=file.json` keeps there what became of them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.store import MANIFEST, RECORDS, open_run
from benchctl.errors import BenchctlError
from benchctl.experiments.sampling.judge import sampling_verdict
from benchctl.experiments.sampling.stored import ANSWERS, CHECK, SCORES, open_check
from benchctl.lossless.judge.run import analyse_run
from tests.fuzz import changed, places
from tests.resealed import reseal

KEPT = Path(__file__).parents[1] / "data" / "kept" / "run"
OF_A_RUN = (MANIFEST, RECORDS, "scores.json", "costs.json")
OF_A_CHECK = (CHECK, ANSWERS, SCORES)
BY_HAND = int(os.environ.get("BENCHCTL_MUTATIONS", "0"))
LONG_RUN = os.environ.get("BENCHCTL_LONG_RUN")
Mutate = Callable[[random.Random, Path, Path], None]
Conclude = Callable[[Path], tuple[Any, tuple[str, ...]]]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another run of the same arms and prompts, intact, and faster."""
    run = tmp_path_factory.mktemp("other") / "run"
    shutil.copytree(KEPT, run)
    for folder, head, lines in ((run, MANIFEST, RECORDS), (run / "sampling", CHECK, ANSWERS)):
        document = json.loads((folder / head).read_text("utf-8"))
        manifest = document.get("manifest", document)
        manifest["run"] = "20261201-101010-beef"
        (folder / head).write_text(json.dumps(document), "utf-8")
        records = [json.loads(line) for line in (folder / lines).read_text("ascii").splitlines()]
        for line in records:
            if "run" in line:
                line["run"] = manifest["run"]
                for name in ("client_tok_per_sec", "tok_per_sec"):
                    line[name] = line[name] and 2 * line[name]
                for name in ("decode_s", "engine_decode_s"):
                    line[name] = line[name] and line[name] / 2
        (folder / lines).write_text("".join(json.dumps(line) + "\n" for line in records), "ascii")
        reseal(folder)
    assert open_run(run).integrity.state == open_check(run / "sampling").integrity.state == "intact"
    return run


def flip_a_bit(rng: random.Random, file: Path, other: Path) -> None:
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(bytes(content))


def cut_off(rng: random.Random, file: Path, other: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))])


def remove_bytes(rng: random.Random, file: Path, other: Path) -> None:
    content, size = file.read_bytes(), rng.randrange(1, 200)
    offset = rng.randrange(len(content))
    file.write_bytes(content[:offset] + content[offset + size :])


def _lines(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True)


def delete_a_line(rng: random.Random, file: Path, other: Path) -> None:
    lines = _lines(file)
    del lines[rng.randrange(len(lines))]
    file.write_bytes(b"".join(lines))


def repeat_a_line(rng: random.Random, file: Path, other: Path) -> None:
    lines = _lines(file)
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    file.write_bytes(b"".join(lines))


def swap_lines(rng: random.Random, file: Path, other: Path) -> None:
    lines = _lines(file)
    line, two = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[line], lines[two] = lines[two], lines[line]
    file.write_bytes(b"".join(lines))


def take_a_line_of_another_run(rng: random.Random, file: Path, other: Path) -> None:
    lines, theirs = _lines(file), _lines(other)
    offset = rng.randrange(min(len(lines), len(theirs)))
    lines[offset] = theirs[offset]
    file.write_bytes(b"".join(lines))


def take_the_file_of_another_run(rng: random.Random, file: Path, other: Path) -> None:
    shutil.copy(other, file)


def remove_the_file(rng: random.Random, file: Path, other: Path) -> None:
    file.unlink()


def _edit(rng: random.Random, file: Path, change: Callable[[Any], Any]) -> None:
    """Change the JSON of a file, or of one of its lines, and write it as it was written."""
    if file.suffix == ".jsonl":
        lines = _lines(file)
        offset = rng.randrange(len(lines))
        lines[offset] = json.dumps(change(json.loads(lines[offset])), separators=(",", ":")).encode("ascii") + b"\n"
        file.write_bytes(b"".join(lines))
    else:
        text = file.read_text("utf-8")
        file.write_text(json.dumps(change(json.loads(text)), indent=1 if "\n " in text else None) + "\n", "utf-8")


def change_a_number(rng: random.Random, file: Path, other: Path) -> None:
    def change(document: Any) -> Any:
        ways = [way for way in places(document) if isinstance(_at(document, way), int | float)]
        way = rng.choice(ways)
        value = _at(document, way)
        return changed(document, way, rng.choice([value * 10, value + 1, -value, value * 1.01, 0]), drop=False)

    _edit(rng, file, change)


def remove_a_key(rng: random.Random, file: Path, other: Path) -> None:
    _edit(rng, file, lambda document: changed(document, rng.choice(places(document)[1:]), None, drop=True))


def misspell_a_key(rng: random.Random, file: Path, other: Path) -> None:
    def change(document: Any) -> Any:
        way = rng.choice([way for way in places(document) if way and isinstance(way[-1], str)])
        without = changed(document, way, None, drop=True)
        return changed(without, (*way[:-1], f"{way[-1]}s"), _at(document, way), drop=False)

    _edit(rng, file, change)


def empty_a_value(rng: random.Random, file: Path, other: Path) -> None:
    value: object = rng.choice((None, [], {}, "", 0, True))
    _edit(rng, file, lambda document: changed(document, rng.choice(places(document)[1:]), value, drop=False))


def _at(document: Any, way: tuple[Any, ...]) -> Any:
    for key in way:
        document = document[key]
    return document


MUTATIONS: tuple[Mutate, ...] = (
    *(flip_a_bit, cut_off, remove_bytes, delete_a_line, repeat_a_line, swap_lines, take_a_line_of_another_run),
    *(take_the_file_of_another_run, remove_the_file),
    *(change_a_number, remove_a_key, misspell_a_key, empty_a_value),
)


def concluded_of_a_run(folder: Path) -> tuple[Any, tuple[str, ...]]:
    """Everything that is concluded of a run, and what is named as damage."""
    data = open_run(folder)
    analysis = analyse_run(data)
    if data.integrity.damage:
        assert {(verdict.speed, verdict.lossless) for verdict in analysis.verdicts} == {("unknown", "undetermined")}
    conclusions = (analysis.model_dump(), data.records, data.scores, data.costs, data.manifest)
    return conclusions, (*data.integrity.findings, *data.damaged)


def concluded_of_a_check(folder: Path) -> tuple[Any, tuple[str, ...]]:
    """The same of a check of the sampling."""
    data = open_check(folder)
    result = sampling_verdict(data)
    if data.integrity.damage:
        assert {arm.verdict for arm in result.arms} == {"undetermined"}
    return (result.model_dump(), data.answers, data.scores, data.check), data.integrity.findings


def outcome(
    number: int,
    seed: str,
    whole: Path,
    other: Path,
    names: tuple[str, ...],
    conclude: Callable[[Path], Any],
    sound: Any,
) -> str:
    """Change one file of a sound run and conclude; return what became of it. The file is put back."""
    rng = random.Random(f"{seed}-{number}")
    file = whole / rng.choice(names)
    mutate = MUTATIONS[number % len(MUTATIONS)]
    before = file.read_bytes()
    try:
        mutate(rng, file, other / file.name)
        if file.exists() and file.read_bytes() == before:
            return "unchanged"
        try:
            conclusion, named = conclude(whole)
        except BenchctlError as error:
            assert error.what
            return "refused"
        if named:
            return "named"
        assert conclusion == sound, f"{mutate.__name__} of {file.name} (mutation {number} of {seed}) was not seen"
        return "no difference"
    finally:
        file.write_bytes(before)


def many(count: int, seed: str, folder: Path, other: Path) -> Counter[str]:
    run_copy = shutil.copytree(KEPT, folder / "run")
    outcomes: Counter[str] = Counter()
    targets: tuple[tuple[Path, Path, tuple[str, ...], Conclude], ...] = (
        (run_copy, other, OF_A_RUN, concluded_of_a_run),
        (run_copy / "sampling", other / "sampling", OF_A_CHECK, concluded_of_a_check),
    )
    sound = []
    for target, _, _, conclude in targets:
        conclusion, named = conclude(target)
        assert not named
        sound.append(conclusion)
    for number in range(count):
        which = 0 if number % 4 else 1
        target, theirs, names, conclude = targets[which]
        outcomes[outcome(number, seed, target, theirs, names, conclude, sound[which])] += 1
    return outcomes


def test_a_hundred_mutations(tmp_path: Path, other: Path) -> None:
    outcomes = many(104, "quick", tmp_path, other)
    assert outcomes["named"] > 60


@pytest.mark.slow
def test_a_thousand_mutations(tmp_path: Path, other: Path) -> None:
    began = time.monotonic()
    seed = str(time.time_ns()) if BY_HAND else "suite"
    outcomes = many(BY_HAND or 1000, seed, tmp_path, other)
    assert outcomes["named"] > 0.6 * outcomes.total()
    if LONG_RUN:
        summary = {
            "mutations": outcomes.total(),
            "seed": seed,
            "outcomes": dict(outcomes),
            "seconds": time.monotonic() - began,
        }
        Path(LONG_RUN).write_text(json.dumps(summary, indent=1) + "\n", "utf-8")
