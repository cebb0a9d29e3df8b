"""Whether a run is the evidence that it was: what changed since it was written, and what contradicts itself.

The chain shows what changed. What it cannot show, because somebody made the chain anew, or because the run is older
than digests, shows where the run contradicts itself: records of another run, times that do not belong together, cells
that are missing or were never attested. Nothing is left out for it: a run with damage is read and shown as any other,
but no verdict rests on it.

What is made of a run after it, scores and timings, lies whole in a file of its own; `digests.json` has the SHA-256 of
each, and how far the run was when it was made. Its own digest is anchored at the run, so that it is no other run's. A
file that is not what is named there is not used, as if it were not there: what rests on it is undetermined until it is
made again.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from pydantic import Field

from benchctl.data.cell import Cell
from benchctl.data.chain import Mark, canonical_sha256, chain_seed, follows, has_link, has_seal, is_sealed, stated
from benchctl.data.manifest import EngineIdentity, Manifest, ModelIdentity
from benchctl.data.record import Record
from benchctl.data.versions import Part, StoredFormat
from benchctl.errors import StorageError

FIRST_WITH_DIGESTS = 4
"""Version of a manifest."""
EXACT = 1e-6
"""Share of a value that was computed from others in the same record."""
CLOCK_S, CLOCK_SHARE = 0.01, 0.001
"""By how much two times of the same clock may disagree: rounding, and the clock's own resolution."""
IDLE_S = 0.1
"""Between two answers a client spends less, or less than an answer takes; kept runs spend 3 to 20 ms."""
REST_S = 0.25
"""An answer's last byte follows its last token by less, unless that is a small part of the answer."""
LISTED = 6
"""Lines that a sentence lists."""


@dataclass(frozen=True)
class Integrity:
    """What is known of a run's files."""

    digests: bool = False
    """Whether it has any: a study's files have none, nor has a run of a benchctl before them."""
    damage: tuple[str, ...] = ()
    """A sentence with file and line for everything that changed or contradicts itself: nothing is concluded then."""
    scores: tuple[str, ...] = ()
    """Stored scores that changed, a sentence for each: they are not used, as if they were not there."""
    recipe_changed: bool = False
    """Whether the manifest's recipe is not what its hash is of; found without digests, too."""

    @property
    def findings(self) -> tuple[str, ...]:
        """Everything that is not as it was written."""
        return self.damage + self.scores

    @property
    def reason(self) -> str | None:
        """Why nothing is concluded, in a sentence; `None` where there is no damage."""
        if not self.damage:
            return None
        more = f" And {len(self.damage) - 1} more." if len(self.damage) > 1 else ""
        return f"The stored evidence cannot be relied on: {self.damage[0]}{more}"

    @property
    def state(self) -> str:
        """A word for `--json`."""
        return "damaged" if self.findings else "intact" if self.digests else "no digests"

    @property
    def sentence(self) -> str:
        """All of it on a line."""
        if self.findings:
            more = f" And {len(self.findings) - LISTED} more." if len(self.findings) > LISTED else ""
            return f"Files: not as they were written. {' '.join(self.findings[:LISTED])}{more}"
        if self.digests:
            return "Files: unchanged since they were written (the digests do not say by whom)."
        return "Files: no digests, so whether they changed since they were written is not known."

    def as_dict(self) -> dict[str, object]:
        """Return it for `--json`."""
        return {"state": self.state, "damage": list(self.damage), "scores": list(self.scores)}


class LineCheck:
    """Checks the lines of a file as they are read: `line` for each, then `damage`."""

    def __init__(self, name: str, manifest: Manifest | None) -> None:
        self._name = name
        self._manifest = manifest
        self._head: bytes | None = None
        """`None`: the file has no chain."""
        self._marks: dict[int, list[tuple[bytes, str]]] = defaultdict(list)
        """By number of lines the chain there, and what was made of the lines until then."""
        self.missed: dict[str, int] = {}
        """What was made of lines that are not these, with how many they were."""
        if manifest is not None and manifest.digests:
            self._head = chain_seed(manifest.run, manifest.recipe_sha256).encode("ascii")
            for cell in manifest.cells:
                if cell.mark is not None:
                    self.expect(cell.mark, cell_name(cell))
        self._lines = 0
        self._bad: dict[str, list[int]] = defaultdict(list)

    @property
    def chained(self) -> bool:
        """Whether lines have a chain."""
        return self._head is not None

    def expect(self, mark: Mark, what: str) -> None:
        """Find out whether these are the lines that something was made of."""
        if mark.lines:
            self._marks[mark.lines].append((mark.head.encode("ascii", "replace"), what))

    def line(self, line: bytes) -> bool:
        """Take the next line; return whether it was written where it stands, as far as that is known."""
        self._lines += 1
        if self._head is None:
            if self._manifest is not None and has_link(line):
                self.note("chained, in a run without digests")
            return True
        head = follows(line, self._head)
        good = head is not None
        if head is None:
            if line[-1:] != b"\n":  # cut off: it was never whole, and the next writer drops it
                return True
            self.note("not as it was written, or not where")
            head = stated(line)
        self._head = head
        if self._lines in self._marks:
            self.missed |= {what: self._lines for mark, what in self._marks.pop(self._lines) if mark != head}
        return good

    def note(self, what: str) -> None:
        """Keep something that is wrong with the line that was taken last."""
        self._bad[what].append(self._lines)

    def unknown_keys(self, keys: Iterable[str]) -> None:
        """Keep the keys that a line with a chain has and no record does."""
        if self.chained:
            self.note(f"with unknown keys ({', '.join(sorted(keys))})")

    def damage(self) -> Iterator[str]:
        """Yield a sentence for everything that was found, once all lines are read."""
        for what, lines in self._bad.items():
            listed = ", ".join(map(str, lines[:LISTED]))
            yield f"{self._name}:{listed}{_more(len(lines) - LISTED)} {'is' if len(lines) == 1 else 'are'} {what}."
        for number, marks in self._marks.items():
            self.missed |= {what: number for _, what in marks}
        cells = {what: number for what, number in self.missed.items() if what.startswith("block ")}
        if cells:
            what, number = max(cells.items(), key=lambda pair: pair[1])
            yield f"{self._name}: line {number} is not the last of {what}; the file has {self._lines} lines."


class RecordCheck(LineCheck):
    """Checks the records of a run."""

    def __init__(self, name: str, manifest: Manifest | None) -> None:
        super().__init__(name, manifest)
        self._run = manifest.run if manifest else None
        arms = manifest.arms if manifest else []
        self._alone = {arm.name for arm in arms if not arm.overlapping}
        """Arms with a single request at a time."""
        interleaved = manifest is not None and manifest.recipe.get("schedule") == "interleaved"
        self._busy = {
            arm.name
            for arm in arms
            if arm.name in self._alone and not interleaved and arm.url is None and arm.context_length is None
        }
        """Of these the arms whose client does nothing else between two answers."""
        self._last: dict[tuple[int, str, int], tuple[float, float]] = {}
        self._idle: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.measured: set[tuple[int, str]] = set()
        """(block, arm) of every measured record."""

    def record(self, record: Record) -> None:
        """Take what the last line holds."""
        if self._run is None:
            return
        if record.run != self._run and (record.run is not None or self.chained):
            self.note(f"of another run ({record.run})")
        if record.phase != "measure":
            return
        label = record.label
        self.measured.add((record.block, label))
        if record.error is None:
            wrong = contradiction(record)
            if wrong is not None:
                self.note(f"in contradiction with its own times: {wrong}")
        if self.chained and label in self._alone:  # else the order of lines is not known to be that of the answers
            self._follow(record, (record.block, label, record.attempt))

    def _follow(self, record: Record, process: tuple[int, str, int]) -> None:
        """Compare an answer with when the next request of its process was sent."""
        sent, took = record.sent_s, record.e2e_s
        if sent is None or took is None or record.error is not None:
            self._last.pop(process, None)
            return
        before = self._last.get(process)
        self._last[process] = (sent, took)
        if before is None or sent <= before[0]:
            return  # the first, or recorded again
        gap = sent - before[0]
        if before[1] > gap * (1 + CLOCK_SHARE) + CLOCK_S:
            self.note("sent before the answer to the request before it had ended, by their own times")
        elif record.label in self._busy:
            self._idle[record.label].append((gap - before[1], before[1]))

    def damage(self) -> Iterator[str]:
        """Yield a sentence for everything that was found, once all lines are read."""
        yield from super().damage()
        for arm, found in self._idle.items():
            idle, took = (median(values) for values in zip(*found, strict=True))
            if len(found) > 2 and idle > max(IDLE_S, took):
                yield (
                    f"{self._name}: the answers of {arm} took {took:.3g} s by their own times, and {idle:.3g} s of "
                    "nothing lie between two of them."
                )


def contradiction(record: Record) -> str | None:
    """Return which of an answer's times, rates and counts cannot all be true; `None` where they can."""
    tokens, rate, client = record.n_predicted, record.tok_per_sec, record.client_tok_per_sec
    engine_s, decode_s, first_s, whole_s = record.engine_decode_s, record.decode_s, record.ttft_s, record.e2e_s
    if rate is not None and engine_s is not None and abs(rate * engine_s - (tokens - 1)) > EXACT * tokens:
        return "tok_per_sec is not its tokens over engine_decode_s"
    if client is not None and decode_s is not None:
        after = client * decode_s
        if after > tokens - 1 + EXACT * tokens or abs(after - round(after)) > EXACT * tokens:
            return "client_tok_per_sec is not its tokens over decode_s"
    if decode_s is not None and first_s is not None and whole_s is not None:
        rest = whole_s - first_s - decode_s
        if rest < -CLOCK_S - CLOCK_SHARE * whole_s:
            return "ttft_s and decode_s are more than e2e_s"
        if rest > REST_S + whole_s / 2:
            return "ttft_s and decode_s are less than half of e2e_s"
    if record.token_ids is not None and abs(len(record.token_ids) - tokens) > 1 + tokens / 50:
        return f"it has {len(record.token_ids)} token ids and counts {tokens} tokens"
    return None


def manifest_damage(raw: bytes, stored: Mapping[str, Any], manifest: Manifest, name: str) -> list[str]:
    """Return a sentence for everything of a manifest that changed or is not there.

    `raw`: the file that it was read from; `stored`: its JSON, in the version that it was written in.
    """
    found = []
    if stored.get("schema", 1) < FIRST_WITH_DIGESTS:
        return [f"{name} has a digest, and its version none."] if has_seal(raw) else []
    if not is_sealed(raw):
        found.append(f"{name} is not as it was written: its digest is another, or missing.")
    if not manifest.digests:
        return found
    if recipe_changed(manifest):
        found.append(f"{name}: the recipe is not that which was run, for its hash is another.")
    found += [f"{name}: {key} is no key of a manifest." for key in _unknown(stored, manifest.model_dump(by_alias=True))]
    found += [f"{name}: {what} has no SHA-256." for what in _without_hash(manifest)]
    for cell in manifest.cells:
        if cell.status == "finished" and cell.attestation is None and cell.discarded is None:
            found.append(f"{name}: {cell_name(cell)} finished without an attestation.")
    return found


def recipe_changed(manifest: Manifest) -> bool:
    """Whether a manifest's recipe is not what its hash is of."""
    return canonical_sha256(manifest.recipe) != manifest.recipe_sha256


def missing_cells(manifest: Manifest, measured: set[tuple[int, str]], name: str) -> list[str]:
    """Return a sentence for every cell that a run that has ended must have and does not: it was taken out."""
    if not manifest.digests or manifest.status not in ("finished", "failed"):
        return []
    there = {(cell.block, cell.arm) for cell in manifest.cells}
    expected = set(measured)
    if manifest.status == "finished" and manifest.tuning is None:
        ended, blocks = manifest.ended(), manifest.blocks
        for arm in manifest.arms:
            expected |= {(block, arm.name) for block in range(min(blocks, ended.get(arm.name, blocks)))}
    return [f"{name}: block {block + 1}, {arm} is not among the cells." for block, arm in sorted(expected - there)]


def cell_name(cell: Cell) -> str:
    """Name a cell as a run does."""
    return f"block {cell.block + 1}, {cell.arm}"


def _without_hash(manifest: Manifest) -> Iterator[str]:
    """Yield what ran and has no hash; a server that ran already shows no files."""
    setups: list[tuple[str, EngineIdentity, ModelIdentity, ModelIdentity | None]] = [
        ("", manifest.engine, manifest.target, manifest.draft),
        *((f" of {setup.name}", setup.engine, setup.target, setup.draft) for setup in manifest.setups),
    ]
    for of, engine, target, draft in setups:
        if engine.binary is not None and not engine.details.get("sha256"):
            yield f"the engine{of}"
        for role, model in (("target", target), ("draft", draft)):
            launched = model is not None and model.path is not None
            if model is not None and launched and not all([model.files, *(file.sha256 for file in model.files)]):
                yield f"the {role}{of}"


def _unknown(document: Any, known: Any, where: str = "") -> Iterator[str]:  # noqa: ANN401 - whatever JSON can hold
    """Yield the ways to keys that a document has and its model has not."""
    if isinstance(document, dict) and isinstance(known, dict):
        for key, value in document.items():
            if key not in known:
                if where or key != "digest":
                    yield f"{where}{key}"
            else:
                yield from _unknown(value, known[key], f"{where}{key}.")
    elif isinstance(document, list) and isinstance(known, list):
        for number, (value, other) in enumerate(zip(document, known, strict=False)):
            yield from _unknown(value, other, f"{where}{number}.")


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


DIGESTS = "digests.json"
DIGESTS_FORMAT = StoredFormat("file of digests", version=1)
Read = TypeVar("Read")


class ScoreDigest(Part):
    """A file."""

    sha256: str
    mark: Mark | None = None
    """The run's lines that it was made of."""


class Digests(Part):
    """All files."""

    schema_version: int = Field(default=DIGESTS_FORMAT.version, alias="schema")
    files: dict[str, ScoreDigest] = Field(default_factory=dict)


class StoredScores:
    """The files of scores of a run, while it is read."""

    def __init__(self, folder: Path, manifest: Manifest, lines: LineCheck) -> None:
        self._folder, self._lines = folder, lines
        self._checked = manifest.digests
        self._known = read_digests(folder, manifest) if manifest.digests else None
        self.findings: list[str] = []
        """A sentence for every file that cannot be used."""
        if self._known is None and self._checked and (folder / DIGESTS).exists():
            self.findings.append(f"{DIGESTS} is not as it was written.")
        for name, own in self._known.files.items() if self._known else ():
            if own.mark is not None:
                lines.expect(own.mark, name)

    def read(self, name: str, read: Callable[[], Read]) -> Read | None:
        """Return what a file holds, once the lines are read; `None` where it cannot be used. Errors as `read`."""
        wrong = self._wrong(name) if self._checked else None
        if wrong is not None:
            self.findings.append(f"{name} {wrong}, and is not used.")
        return read() if wrong is None else None

    def _wrong(self, name: str) -> str | None:
        own = self._known.files.get(name) if self._known else None
        try:
            with (self._folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return None if own is None else "is missing"
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if own is None:
            return f"has no digest in {DIGESTS}"
        if found != own.sha256:
            return "is not as it was written"
        return "was made of other records" if name in self._lines.missed else None


def read_digests(folder: Path, manifest: Manifest) -> Digests | None:
    """Read the digests; `None` where there are none of this run."""
    try:
        content = (folder / DIGESTS).read_bytes()
        return DIGESTS_FORMAT.read(folder / DIGESTS, Digests) if is_sealed(content, anchor(manifest)) else None
    except (OSError, StorageError):
        return None


def anchor(manifest: Manifest) -> str:
    """Return what the digest of a run's file of digests is anchored at."""
    return chain_seed(manifest.run, manifest.recipe_sha256)
