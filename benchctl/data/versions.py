"""Files that a newer benchctl wrote are refused: their keys may mean something else by then."""

from __future__ import annotations

from benchctl.errors import StorageError


def refuse_newer(raw: object, known: int, what: str, where: str) -> None:
    """Raise StorageError when the JSON document `raw` is of a newer schema than `known`; `what` as in `newer`."""
    version = raw.get("schema") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > known:
        raise newer(version, known, what, where)


def newer(version: int, known: int, what: str, where: str) -> StorageError:
    """Return the error for `what` (such as `This run`) of schema `version`."""
    return StorageError(
        f"{what} was written by a newer benchctl (schema {version}; this one reads up to {known}).",
        where=where,
        fix="Upgrade benchctl to read it.",
    )
