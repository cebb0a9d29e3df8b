"""SHA-256 of stored files: whether a file is what was written. No signature: it does not say who wrote it.

The manifest has the SHA-256 of each file of a run: of the records as far as they were written when the manifest was
saved last, of scores as a whole. A document such as the manifest ends with `"digest"`, the SHA-256 of everything before
that key.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import BaseModel

from benchctl.data.versions import Model, Part, StoredFormat
from benchctl.writing import write_whole

_KEY, _END = b',\n "digest": "', b'"\n}\n'
_SEAL = len(_KEY) + 64 + len(_END)


class FileDigest(Part):
    """A file as it was written."""

    bytes: int
    sha256: str
    """The SHA-256 of the file's first `bytes` bytes."""


def canonical_sha256(value: object) -> str:
    """Return the SHA-256 of `value` as JSON with sorted keys and no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def change_of(file: Path, stated: FileDigest | None, *, grows: bool = False) -> str | None:
    """Return how a file is not what was written, as the end of a sentence; `None` where it is.

    `grows`: more may follow what was written, as records do that a killed process appended.
    """
    try:
        size = file.stat().st_size
        if stated is None:
            return "has no SHA-256 in the manifest"
        if size < stated.bytes or (size > stated.bytes and not grows):
            return "was changed after it was written"
        total = hashlib.sha256()
        remaining = stated.bytes
        with file.open("rb") as stream:
            while remaining and (block := stream.read(min(remaining, 1 << 20))):
                total.update(block)
                remaining -= len(block)
    except FileNotFoundError:
        return None if stated is None else "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if total.hexdigest() == stated.sha256 else "was changed after it was written"


def sealed(text: str) -> str:
    """Return a JSON object, as indented by one space, with its digest and a line end."""
    body = text.rstrip()[:-1].rstrip()
    digest = hashlib.sha256(body.encode("utf-8")).hexdigest()
    return f"{body}{_KEY.decode()}{digest}{_END.decode()}"


def is_sealed(content: bytes) -> bool:
    """Whether a document ends with the digest of its content."""
    return content[-_SEAL:] == _KEY + hashlib.sha256(content[:-_SEAL]).hexdigest().encode() + _END


def write_sealed(file: Path, document: BaseModel, indent: int | None = None) -> None:
    """Replace a document with its digest at its end, atomically. Raises StorageError."""
    write_whole(file, sealed(document.model_dump_json(by_alias=True, indent=indent)))


def read_sealed(form: StoredFormat, file: Path, model: type[Model]) -> Model:
    """Read a document that ends with its digest. Errors as `StoredFormat.read`, also where the digest is another."""
    document, content = form.read_with_source(file, model)
    if not is_sealed(content):
        raise form.unreadable("it was changed after it was written", str(file))
    return document
