"""A hub file that is on this machine already, found by its name below a folder."""

from __future__ import annotations

from pathlib import Path

from benchctl.errors import UsageError
from benchctl.models.shards import shard_names
from benchctl.recipes.source import HubSource
from benchctl.text import one_line


def find_local(source: HubSource, folder: Path) -> Path | None:
    """Return the file of a hub source below `folder`; None when there is none.

    A named file is looked for as ORG/REPO/FILE, REPO/FILE and FILE. Without a name, the GGUF files in ORG/REPO and
    REPO and those called after the repository serve; several of them raise UsageError.
    """
    organisation, repository = source.repo.split("/")
    places = [folder / organisation / repository, folder / repository, folder]
    if source.file is not None:
        short = source.file.rsplit("/", 1)[-1]
        candidates = [place / name for place in places for name in dict.fromkeys((source.file, short))]
        return next((path for path in candidates if path.is_file()), None)
    for place in places[:2]:
        if found := _one_of(sorted(place.glob("*.gguf")), source):
            return found
    stem = repository.lower().removesuffix("-gguf")
    called = [path for path in sorted(folder.glob("*.gguf")) if _is_called(path.stem.lower(), stem)]
    return _one_of(called, source)


def _is_called(name: str, stem: str) -> bool:
    """`plamo-2-8b-bf16` is called after `plamo-2-8b`, `plamo-2-80b` is not."""
    return name == stem or (name.startswith(stem) and name[len(stem)] in "-._")


def _one_of(files: list[Path], source: HubSource) -> Path | None:
    """Count shards of one model as one."""
    firsts = sorted({file.with_name(shard_names(file.name)[0]) for file in files})
    if len(firsts) > 1:
        listed = ", ".join(one_line(path.name, 80) for path in firsts[:8])
        fix = f"Name one: hf:{source.repo}/{one_line(firsts[0].name, 80)}"
        raise UsageError(
            f"{len(firsts)} files could be meant: {listed}", where=one_line(str(firsts[0].parent)), fix=fix
        )
    return firsts[0] if firsts else None
