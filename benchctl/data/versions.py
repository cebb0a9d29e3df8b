"""Versions of stored files: every kind of file has the version that this benchctl writes; others are refused.

A version rises when a key changes its meaning or goes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from benchctl.errors import StorageError

Document = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)


class Part(BaseModel):
    """Base of every part of a file: a newer benchctl may have added keys, which are ignored on reading."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


@dataclass(frozen=True)
class StoredFormat:
    """A kind of file."""

    document: str
    """Its name in messages, such as `manifest`."""
    version: int
    """The version that is written, and read."""
    fix: str | None = None
    """What to do about a file that cannot be read."""

    def current(self, raw: object, where: str) -> Document:
        """Return a parsed file of the present version; a missing `schema` is the first. Raises StorageError."""
        if not isinstance(raw, dict):
            raise self.unreadable("it is no JSON object", where)
        version = raw.get("schema", 1)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise self.unreadable("its schema is no version", where)
        if version != self.version:
            raise other_version(version, self.version, self.document, where)
        return raw

    def read(self, file: Path, model: type[Model]) -> Model:
        """Read a file. Raises FileNotFoundError, and StorageError with what is wrong."""
        return self.read_with_source(file, model)[0]

    def read_with_source(self, file: Path, model: type[Model]) -> tuple[Model, bytes]:
        """Read a file; return also its bytes. Errors as `read`."""
        try:
            content = file.read_bytes()
            raw = json.loads(content)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self.unreadable(error.strerror or str(error), str(file)) from None
        except RecursionError:
            raise self.unreadable("it is nested too deeply", str(file)) from None
        except ValueError as error:
            raise self.unreadable(str(error).splitlines()[0], str(file)) from None
        return self.validated(model, raw, str(file)), content

    def validated(self, model: type[Model], raw: object, where: str) -> Model:
        """Return a parsed file as its model. Raises StorageError with the first key that is wrong."""
        document = self.current(raw, where)
        try:
            return model.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            problem = ": ".join(filter(None, (key, first["msg"])))
            raise StorageError(f"The {self.document} is damaged: {problem}.", where=where, fix=self.fix) from None

    def unreadable(self, reason: str, where: str) -> StorageError:
        """Return the error for a file that is not what it should be; `reason` is the end of a sentence."""
        return StorageError(f"The {self.document} cannot be read: {reason}.", where=where, fix=self.fix)


def other_version(version: int, readable: int, document: str, where: str) -> StorageError:
    """Return the error for a `document` (such as `manifest`) of schema `version`."""
    age, fix = ("a newer", "Upgrade benchctl") if version > readable else ("an older", "Use that version")
    return StorageError(
        f"This {document} was written by {age} benchctl (schema {version}; this one reads {readable}).",
        where=where,
        fix=f"{fix} to read it.",
    )
