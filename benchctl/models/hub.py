"""Files of the Hugging Face hub: through huggingface-hub (its cache, token, resumed downloads), or in a folder here."""

from __future__ import annotations

import re
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from benchctl.errors import UsageError
from benchctl.models.convert import is_safetensors_folder
from benchctl.models.files import Notice
from benchctl.models.gguf_facts import shard_names
from benchctl.recipes.problems import did_you_mean
from benchctl.recipes.source import HubSource
from benchctl.text import one_line, plural

_MAX_LISTED = 12
_CONNECT_S = 5.0
_TRANSPORTS = {"httpx", "httpx2", "requests", "urllib3"}
"""What huggingface-hub's versions speak HTTP with; their errors share no base but Exception."""


class OfflineError(Exception):
    """The hub cannot be reached, and its cache does not have the file."""


def fetch(source: HubSource, notice: Notice | None = None, *, safetensors: bool = False) -> Path:
    """Return the local path of a hub file (the first shard of several), downloading what is missing.

    With `safetensors`, of a repository without GGUF its folder. Raises UsageError, and OfflineError without network.
    """
    from huggingface_hub import hf_hub_download

    online = _reachable()
    with _explained(source):
        name = source.file
        if name is None:
            files = _files(source.repo, online)
            if safetensors and _safetensors_only(files):
                return fetch_folder(source, notice)
            name = _only_gguf(source.repo, files, source.tag)
        if notice and online:
            notice(f"Fetching {source.repo}/{name}")
        first, *_ = [hf_hub_download(source.repo, shard, local_files_only=not online) for shard in shard_names(name)]
        return Path(first)


_FOLDER_FILES = ["*.json", "*.jsonl", "*.safetensors", "*.txt", "*.model", "*.jinja"]
"""No code and no other format of the same weights. PLaMo's tokenizer is a `.jsonl`."""


def fetch_folder(source: HubSource, notice: Notice | None = None) -> Path:
    """Return the local folder of a repository of safetensors, downloading what is missing. Raises as `fetch` does."""
    from huggingface_hub import snapshot_download

    online = _reachable()
    with _explained(source):
        if notice and online:
            notice(f"Fetching {source.repo}")
        folder = Path(snapshot_download(source.repo, allow_patterns=_FOLDER_FILES, local_files_only=not online))
    if not any(folder.glob("*.safetensors")):
        fix = "Name the repository of the original weights."
        raise UsageError("the repository has no safetensors", where=f"hf:{source.repo}", fix=fix)
    return folder


def _reachable() -> bool:
    """Whether the hub answers at all: tried once, since huggingface-hub retries for half a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():  # a proxy resolves names for us; only a real request can tell
        return True
    address = urlsplit(constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        with socket.create_connection((address.hostname or "", port), timeout=_CONNECT_S):
            return True
    except OSError:
        return False


def _files(repo: str, online: bool) -> list[str]:
    """Return the files of a repository, or of the newest snapshot that huggingface-hub's cache holds."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    if online:
        return list(HfApi().list_repo_files(repo))
    for patterns in (None, _FOLDER_FILES):  # a folder was not fetched whole, and counts as incomplete
        with suppress(LocalEntryNotFoundError):
            folder = Path(snapshot_download(repo, allow_patterns=patterns, local_files_only=True))
            break
    else:
        raise OfflineError("the hub cannot be reached, and its cache does not have the repository")
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


def _gguf(files: list[str]) -> list[str]:
    names = sorted({shard_names(name)[0] for name in files if name.lower().endswith(".gguf")})
    return [name for name in names if "mmproj" not in name.lower()]


def _safetensors_only(files: list[str]) -> bool:
    return not _gguf(files) and any(name.endswith(".safetensors") for name in files)


def _has_tag(name: str, tag: str | None) -> bool:
    """Whether a file's name has a quantization, as a word of its own; without any, every name has it."""
    return tag is None or re.search(rf"(?<![a-z0-9]){re.escape(tag.lower())}(?![a-z0-9_])", name.lower()) is not None


def _only_gguf(repo: str, files: list[str], tag: str | None = None) -> str:
    names, message, fix = _gguf(files), "the repository has no GGUF file", "Name another repository."
    tagged = [name for name in names if _has_tag(name, tag)]
    if len(tagged) == 1:
        return tagged[0]
    if names:
        listed = "\n".join(f"  hf:{repo}/{name}" for name in names[:_MAX_LISTED])
        further = f"\n  … and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        which = "name one" if tag is None else f"{len(tagged)} of them are {one_line(tag, 40)}"
        count = f"{len(names)} GGUF {plural(len(names), 'file')}"
        message, fix = f"the repository has {count}; {which}", f"One of:\n{listed}{further}"
    elif _safetensors_only(files):
        message = "the repository has safetensors and no GGUF file"
        fix = f"Make it one first: benchctl models quantize hf:{repo} --type bf16 (or another type)."
    raise UsageError(message, where=f"hf:{repo}", fix=fix)


@contextmanager
def _explained(source: HubSource) -> Iterator[None]:
    """Turn huggingface-hub's errors into what to do next."""
    from huggingface_hub import constants, errors
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    where = f"hf:{source.repo}" + (f"/{source.file}" if source.file else "")
    quiet = not sys.stderr.isatty() and not are_progress_bars_disabled()
    if quiet:
        disable_progress_bars()
    try:
        yield
    except errors.GatedRepoError:
        fix = "Accept the model's terms on its page, then log in: hf auth login"
        raise UsageError("access to this repository must be granted first", where=where, fix=fix) from None
    except errors.RepositoryNotFoundError:
        fix = "Check the spelling; for a private one, log in: hf auth login"
        raise UsageError("the hub has no such repository, or it is private", where=where, fix=fix) from None
    except errors.RemoteEntryNotFoundError:
        near = did_you_mean(source.file, _files(source.repo, True)).strip()
        fix = near or f"See its files: {constants.ENDPOINT}/{source.repo}/tree/main"
        raise UsageError("the repository has no such file", where=where, fix=fix) from None
    except errors.LocalEntryNotFoundError:
        lacking = "file" if source.file else "repository"
        raise OfflineError(f"the hub cannot be reached, and its cache does not have the {lacking}") from None
    except errors.HFValidationError as error:
        raise UsageError(f"this is not a repository name: {error}", where=where) from None
    except errors.HfHubHTTPError as error:
        raise OfflineError(f"the hub answered {error.response.status_code}") from None
    except Exception as error:
        if type(error).__module__.split(".")[0] not in _TRANSPORTS:
            raise
        raise OfflineError(f"the connection to the hub broke: {error}") from None
    finally:
        if quiet:
            enable_progress_bars()


def local_folder(source: HubSource, folder: Path) -> Path | None:
    """Return the repository's safetensors below `folder`: ORG/REPO, or REPO."""
    organisation, repository = source.repo.split("/")
    places = (folder / organisation / repository, folder / repository)
    return next((path for path in places if is_safetensors_folder(path)), None)


def find_local(source: HubSource, folder: Path) -> Path | None:
    """Return the file of a hub source below `folder`; None when there is none.

    A named file is searched for as ORG/REPO/FILE, REPO/FILE and FILE. Without a name, the GGUF files in ORG/REPO and
    REPO and those called after the repository serve; several of them raise UsageError.
    """
    organisation, repository = source.repo.split("/")
    places = [folder / organisation / repository, folder / repository, folder]
    if source.file is not None:
        short = source.file.rsplit("/", 1)[-1]
        candidates = [directory / name for directory in places for name in dict.fromkeys((source.file, short))]
        return next((path for path in candidates if path.is_file()), None)
    for directory in places[:2]:
        if match := _one_of(
            [path for path in sorted(directory.glob("*.gguf")) if _has_tag(path.name, source.tag)], source
        ):
            return match
    stem = repository.lower().removesuffix("-gguf")
    ggufs = (path for path in sorted(folder.glob("*.gguf")) if _has_tag(path.name, source.tag))
    called = [path for path in ggufs if _is_called(path.stem.lower(), stem)]
    return _one_of(called, source)


def _is_called(name: str, stem: str) -> bool:
    """`plamo-2-8b-bf16` is called after `plamo-2-8b`, `plamo-2-80b` is not."""
    return name == stem or (name.startswith(stem) and name[len(stem)] in "-._")


def _one_of(files: list[Path], source: HubSource) -> Path | None:
    """Return the only model among `files`; the shards of a model count as a single file."""
    firsts = sorted({file.with_name(shard_names(file.name)[0]) for file in files})
    if len(firsts) > 1:
        listed = ", ".join(one_line(path.name, 80) for path in firsts[:8])
        fix = f"Name one: hf:{source.repo}/{one_line(firsts[0].name, 80)}"
        raise UsageError(f"{len(firsts)} files match: {listed}", where=one_line(str(firsts[0].parent)), fix=fix)
    return firsts[0] if firsts else None
