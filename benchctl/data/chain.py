"""Digests that chain: whether stored files are what was written. No signature: they do not say who wrote them.

A line of a file of lines ends with `"chain"`, the SHA-256 (hexadecimal) of the line before's chain and of the line up
to that key. The first line's is chained to the run's id and its recipe's hash. After every cell the manifest marks how
many lines there were and the last line's chain, so that lines that are gone show, too.

A document ends with `"digest"`, the SHA-256 of everything before that key.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Self

from benchctl.data.versions import Model, Part, StoredFormat

_LINE, _LINE_END = b',"chain":"', b'"}'
_LINK = len(_LINE) + 64 + len(_LINE_END)
_DOCUMENT, _DOCUMENT_END = b',\n "digest": "', b'"\n}\n'
_SEAL = len(_DOCUMENT) + 64 + len(_DOCUMENT_END)


class Mark(Part):
    """How far a file of lines was written."""

    lines: int
    bytes: int
    head: str
    """The last line's chain."""


def canonical_sha256(value: object) -> str:
    """Return the SHA-256 of `value` as JSON with sorted keys and no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def chain_seed(run: str, recipe_sha256: str) -> str:
    """Return what the first line of a run is chained to."""
    return hashlib.sha256(f"{run}\n{recipe_sha256}".encode("utf-8", "surrogatepass")).hexdigest()


def linked(line: bytes, head: bytes) -> bytes:
    """Return the chain that a whole line, line end included, has after a line whose chain is `head`."""
    return hashlib.sha256(head + line[: -_LINK - 1]).hexdigest().encode("ascii")


def follows(line: bytes, head: bytes) -> bytes | None:
    """Return the chain of a line where it follows a line whose chain is `head`; `None` where it is not."""
    own = linked(line, head)
    return own if line[-_LINK - 1 :] == _LINE + own + _LINE_END + b"\n" else None


def stated(line: bytes) -> bytes:
    """Return the chain that a line states, else the line's own SHA-256: the next line follows it."""
    if has_link(line):
        return line[-_LINK - 1 + len(_LINE) : -len(_LINE_END) - 1]
    return hashlib.sha256(line).hexdigest().encode("ascii")


def has_link(line: bytes) -> bool:
    """Whether a whole line states a chain."""
    return line[-3:] == _LINE_END + b"\n" and line[-_LINK - 1 : len(_LINE) - _LINK - 1] == _LINE


def without_link(line: bytes) -> bytes:
    """Return a line as it was before it was chained; without a chain it stays as it is."""
    return line[: -_LINK - 1] + b"}\n" if has_link(line) else line


class Chain:
    """The chain of a file of lines, while it is written."""

    def __init__(self, seed: str) -> None:
        self._head = seed.encode("ascii")
        self._lines = self._bytes = 0

    @classmethod
    def of_file(cls, file: int, seed: str) -> Self:
        """Return the chain of an open file of whole lines, to be continued."""
        chain, last, at, size = cls(seed), b"", 0, os.fstat(file).st_size
        while at < size and (block := os.pread(file, 1 << 20, at)):
            at += len(block)
            chain._lines += block.count(b"\n")
            whole = last + block
            last = whole[whole.rfind(b"\n", 0, -1) + 1 :]
        chain._bytes = at
        if last:
            chain._head = stated(last)
        return chain

    @property
    def mark(self) -> Mark:
        """How far it is written."""
        return Mark(lines=self._lines, bytes=self._bytes, head=self._head.decode("ascii"))

    def line(self, text: str) -> bytes:
        """Return a JSON object as the next line."""
        body = text[:-1].encode("ascii")
        return body + _LINE + hashlib.sha256(self._head + body).hexdigest().encode("ascii") + _LINE_END + b"\n"

    def add(self, line: bytes) -> None:
        """Take a line that was written as the last."""
        self._head = stated(line)
        self._lines += 1
        self._bytes += len(line)


def sealed(text: str, anchor: str = "") -> str:
    """Return a JSON object with its digest; `anchor`: what is hashed before it, so that it holds beside that alone."""
    body = text.rstrip()[:-1].rstrip()
    digest = hashlib.sha256((anchor + body).encode("utf-8")).hexdigest()
    return f'{body}{_DOCUMENT.decode()}{digest}"\n}}'


def has_seal(content: bytes) -> bool:
    """Whether a document ends with a digest, whatever of."""
    return b'"digest": "' in content[-2 * _SEAL :]


def is_sealed(content: bytes, anchor: str = "") -> bool:
    """Whether a document ends with the digest of its content."""
    body, seal = content[:-_SEAL], content[-_SEAL:]
    return seal == _DOCUMENT + hashlib.sha256(anchor.encode() + body).hexdigest().encode() + _DOCUMENT_END


def read_sealed(form: StoredFormat, file: Path, model: type[Model], *, since: int) -> Model:
    """Read a document that has a digest from version `since` on; errors as `StoredFormat.read`, also where it fails."""
    found, content, stored = form.read_with_source(file, model)
    if stored.get("schema", 1) >= since and not is_sealed(content):
        raise form.unreadable("it is not as it was written, for its digest is another, or missing", str(file))
    if stored.get("schema", 1) < since and has_seal(content):
        raise form.unreadable("it has a digest, and its version none", str(file))
    return found


def reaches(file: Path, mark: Mark) -> bool:
    """Whether a file of lines still has the line at which a mark was made; the lines before it are not read."""
    try:
        with file.open("rb") as lines:
            lines.seek(max(0, mark.bytes - _LINK - 1))
            last = lines.read(min(mark.bytes, _LINK + 1))
    except OSError:
        return False
    return not mark.lines or (has_link(last) and stated(last) == mark.head.encode("ascii", "replace"))
