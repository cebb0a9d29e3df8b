"""The source of llama.cpp: the tree that the llama-cpp-python source distribution carries.

A source distribution of an exact version with a known SHA-256 gives every machine the same engine. It comes from the
indexes and mirrors that the user configured for pip; nothing of it is run but what builds llama.cpp.
"""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import re
import shutil
import ssl
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TextIO
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import url2pathname

import httpx

from benchctl.errors import EngineError, UsageError
from benchctl.paths import cache_folder

_INDEX_OF_PIP = re.compile(r'^PyPI = PackageIndex\(\s*"([^"]+)"', re.MULTILINE)
_SOURCE_OF_PIP = "pip/_internal/models/index.py"
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_MOST_PAGE, _MOST_FILE = 64 * 1024**2, 1024**3
"""Bytes."""
_TIMEOUT_S = 60.0
_SECTIONS = ("global", "download")


@dataclass(frozen=True)
class Places:
    """Where packages are looked for, as pip is configured."""

    indexes: tuple[str, ...]
    """URLs below which each package has a page."""
    find_links: tuple[str, ...]
    """Folders and pages of files."""
    certificates: str | None = None


@dataclass(frozen=True)
class Link:
    """A file in a place; `login`: user and password for this URL alone, never shown."""

    url: str
    sha256: str | None
    login: tuple[str, str] | None


@dataclass(frozen=True)
class Login:
    """User and password of the place at `url`; they go to no other scheme, host or port, wherever it redirects to."""

    url: str
    pair: tuple[str, str] | None

    def at(self, url: str) -> tuple[str, str] | None:
        """Return them where `url` is in the same place."""
        own, other = urlsplit(self.url), urlsplit(url)
        same = (own.scheme, own.hostname, own.port) == (other.scheme, other.hostname, other.port)
        return self.pair if same else None


class IndexFailure(Exception):  # noqa: N818 - it becomes an error with advice where the file is needed
    """No place has the file as it should be; the message names each place without its credentials."""

    def __init__(self, reasons: list[str], *, other_bytes: bool) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons
        self.other_bytes = other_bytes
        """Whether a place had a file of that name with another SHA-256."""


def configured(environment: Mapping[str, str] = os.environ) -> Places:
    """Return where pip would look: its configuration files, then its variables."""
    values: dict[str, str] = {}
    for file in _configuration_files(environment):
        parser = configparser.RawConfigParser()
        with suppress(OSError, configparser.Error, UnicodeDecodeError):
            parser.read(file, encoding="utf-8")
        for section in filter(parser.has_section, _SECTIONS):
            values |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    own = {name.removeprefix("PIP_"): value for name, value in environment.items() if name.startswith("PIP_")}
    values |= {name.lower().replace("_", "-"): value for name, value in own.items()}
    offline = values.get("no-index", "").lower() in {"1", "true", "yes", "on"}
    named = [values.get("index-url") or default_index() or "", *values.get("extra-index-url", "").split()]
    return Places(
        () if offline else tuple(filter(None, named)), tuple(values.get("find-links", "").split()), values.get("cert")
    )


def default_index() -> str | None:
    """Return pip's index where none is configured, as pip's own source names it: installed, or bundled with Python.

    `None` where neither is here.
    """
    bundled = [wheel for folder in _beside("ensurepip", "_bundled") for wheel in folder.glob("pip-*.whl")]
    for place in (*_beside("pip", ".."), *bundled):  # a folder, or an archive, that holds the package
        with suppress(OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile):
            text = (zipfile.Path(place) if place.is_file() else place).joinpath(_SOURCE_OF_PIP).read_text("utf-8")
            if found := _INDEX_OF_PIP.search(text):
                return f"{found[1].rstrip('/')}/simple"
    return None


def _beside(package: str, folder: str) -> list[Path]:
    found = find_spec(package)
    return [] if found is None or found.origin is None else [Path(found.origin).parent / folder]


def _configuration_files(environment: Mapping[str, str]) -> list[Path]:
    own = environment.get("PIP_CONFIG_FILE")
    if own == os.devnull:
        return []
    home = Path(environment.get("HOME") or "~").expanduser()
    shared = environment.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    user = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    if sys.platform == "darwin":
        system, support = [Path("/Library/Application Support/pip")], home / "Library/Application Support/pip"
        user_folder = support if support.is_dir() else home / ".config" / "pip"
    else:
        system, user_folder = [Path(folder) / "pip" for folder in shared.split(":")], user / "pip"
    files = [folder / "pip.conf" for folder in system] + [Path("/etc/pip.conf")]
    files += [home / ".pip" / "pip.conf", user_folder / "pip.conf", Path(sys.prefix) / "pip.conf"]
    return [*files, *([Path(own)] if own else [])]


def fetch(package: str, name: re.Pattern[str], sha256: str | None, into: Path, log: TextIO) -> None:
    """Write the package's file of that name to `into`, its SHA-256 checked where one is known. Raises IndexFailure.

    `pip download` would run the build backend that the package names, unpinned. Here the file alone comes, through
    https://packaging.python.org/en/latest/specifications/simple-repository-api/. Raises OSError for `into`.
    """
    places, reasons, other_bytes = configured(), list[str](), False
    if not (places.indexes or places.find_links):
        reasons.append("no index is configured (PIP_INDEX_URL names one)")
    context = ssl.create_default_context(cafile=places.certificates) if places.certificates else True
    with httpx.Client(verify=context, timeout=_TIMEOUT_S, follow_redirects=True) as client:
        pages = [*places.find_links, *(f"{index.rstrip('/')}/{package}/" for index in places.indexes)]
        for page in pages:
            try:
                links = [link for link in _links(client, page) if name.fullmatch(_file_name(link.url))]
                if not links:
                    reasons.append(f"{shown(page)} has no such file")
                for link in links:
                    log.write(f"Fetching {shown(link.url)}\n")
                    found = _save(client, link, into)
                    if found == (sha256 or link.sha256 or found):
                        return
                    other_bytes = True
                    reasons.append(f"{shown(link.url)} has another SHA-256: {found}")
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                reasons.append(f"{shown(page)}: {type(error).__name__}")
            except OSError as error:
                if error.filename is not None and Path(error.filename) == into:
                    raise
                reasons.append(f"{shown(page)}: {error.strerror or type(error).__name__}")
    raise IndexFailure(reasons, other_bytes=other_bytes)


def shown(url: str) -> str:
    """Return a URL without user and password, and without query and fragment: tokens stand there, too."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _file_name(url: str) -> str:
    return unquote(urlsplit(url).path).rpartition("/")[2]


def _links(client: httpx.Client, page: str) -> Iterator[Link]:
    """Yield the files of a page of an index, or of a folder or page of `find-links`."""
    local = _local(page)
    if local is not None:
        if local.is_dir() and not (local / "index.html").is_file():
            yield from (Link(file.absolute().as_uri(), None, None) for file in sorted(local.iterdir()))
            return
        file = local / "index.html" if local.is_dir() else local
        yield from _of_html(file.read_text("utf-8", "replace"), file.absolute().as_uri(), None)
        return
    url, login = _without_login(page)
    with client.stream("GET", url, headers={"Accept": _ACCEPT}, auth=login) as answer:
        answer.raise_for_status()
        text = b"".join(_at_most(answer, _MOST_PAGE)).decode("utf-8", "replace")
        base, kind = str(answer.url), answer.headers.get("content-type", "")
    if "json" not in kind:
        yield from _of_html(text, base, Login(url, login))
        return
    try:
        files = [(str(found["url"]), found.get("hashes", {}).get("sha256")) for found in json.loads(text)["files"]]
    except (TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError("no page of an index") from None
    for address, sha256 in files:
        yield from _link(address, base, Login(url, login), sha256)


class _Anchors(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _of_html(text: str, base: str, login: Login | None) -> Iterator[Link]:
    for address in _Anchors(text).found:
        yield from _link(address, base, login, None)


def _link(address: str, base: str, login: Login | None, sha256: str | None) -> Iterator[Link]:
    """Yield a link of the page `base`, unless a page of the web names a file of this machine."""
    with suppress(ValueError):  # no address at all
        url, fragment = urldefrag(_without_login(urljoin(base, address))[0])
        if urlsplit(url).scheme in {"http", "https"} or (urlsplit(base).scheme == urlsplit(url).scheme == "file"):
            hashed = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
            yield Link(url, sha256 or (hashed[1] if hashed else None), None if login is None else login.at(url))


def _save(client: httpx.Client, link: Link, into: Path) -> str:
    """Write the file of a link to `into`; return its SHA-256. Redirects to other hosts take no login along."""
    digest = hashlib.sha256()
    with into.open("wb") as file:
        for piece in _content(client, link):
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def _content(client: httpx.Client, link: Link) -> Iterator[bytes]:
    local = _local(link.url)
    if local is not None:
        yield local.read_bytes()
        return
    with client.stream("GET", link.url, auth=link.login) as answer:
        answer.raise_for_status()
        yield from _at_most(answer, _MOST_FILE)


def _at_most(answer: httpx.Response, most: int) -> Iterator[bytes]:
    size = 0
    for piece in answer.iter_bytes():
        size += len(piece)
        if size > most:
            raise ValueError("the answer is too large")
        yield piece


def _local(address: str) -> Path | None:
    """Return the path of a `file:` URL or of a path of `find-links`; `None` for an address on the web."""
    parts = urlsplit(address)
    if parts.scheme in {"http", "https"}:
        return None
    if parts.scheme == "file" and parts.hostname in {None, "localhost"}:
        return Path(url2pathname(parts.path))
    if parts.scheme:
        raise ValueError("neither a web address nor a file")
    return Path(address).expanduser()


def _without_login(url: str) -> tuple[str, tuple[str, str] | None]:
    parts = urlsplit(url)
    login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])), login


PACKAGE = "llama-cpp-python"
PINNED_VERSION = "0.3.36"
KNOWN_SHA256 = {"0.3.36": "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"}
_TREE = PurePosixPath("vendor/llama.cpp")
_COMMIT = PurePosixPath(".git/modules/vendor/llama.cpp/HEAD")
_MAX_BYTES = 2 * 1024**3
"""Ten times what the tree unpacks to; more is no source distribution."""

_OFFLINE = "Connect to the network, or give the file itself: `benchctl engines install llama.cpp --sdist FILE`."


@dataclass(frozen=True)
class Sdist:
    """A source distribution that lies on this machine."""

    path: Path
    version: str
    sha256: str


@dataclass(frozen=True)
class SourceTree:
    """An unpacked llama.cpp."""

    folder: Path
    commit: str | None
    """Of llama.cpp, 40 hex digits, as the source distribution records it."""


def read_sdist(path: Path) -> Sdist:
    """Identify a source distribution that the user has; of a known version, only the published bytes are taken.

    Raises UsageError when it is missing or something else, EngineError when its content is not what was published.
    """
    if not path.is_file():
        raise UsageError("there is no such file", where=f"--sdist {path}")
    try:
        with tarfile.open(path, "r:gz") as archive:
            first = archive.next()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UsageError(f"this is not a .tar.gz archive ({error})", where=f"--sdist {path}") from error
    top = PurePosixPath(first.name).parts[0] if first and first.name else ""
    name, _, version = top.rpartition("-")
    if re.sub(r"[-_.]+", "-", name).lower() != PACKAGE or not re.fullmatch(r"[0-9][0-9A-Za-z.]*", version):
        raise UsageError(
            "this is not a source distribution of llama-cpp-python", where=f"--sdist {path}", fix="See docs/engines.md."
        )
    sdist = Sdist(path, version, sha256_file(path))
    known = KNOWN_SHA256.get(version)
    if known and sdist.sha256 != known:
        raise EngineError(
            f"this is not {PACKAGE} {version} as it was published: its SHA-256 is {sdist.sha256}, not {known}",
            kind="install",
            where=str(path),
            fix="Download it again.",
        )
    return sdist


def fetch_sdist(version: str, log: TextIO) -> Sdist:
    """Return the source distribution of `version` from the cache, or from the package index. Raises EngineError."""
    folder = cache_folder() / "sdists"
    cached = folder / f"llama_cpp_python-{version}.tar.gz"
    if cached.is_file() and sha256_file(cached) == KNOWN_SHA256.get(version):
        return Sdist(cached, version, KNOWN_SHA256[version])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temporary:
        fetched = Path(temporary) / cached.name
        try:
            fetch(PACKAGE, _file_of(version), KNOWN_SHA256.get(version), fetched, log)
        except IndexFailure as failure:
            log.writelines(f"{reason}\n" for reason in failure.reasons)
            what, fix = f"{PACKAGE} {version} could not be downloaded", _OFFLINE
            if failure.other_bytes:
                what = f"what the package index has as {PACKAGE} {version} is not what was published (other SHA-256)"
                fix = "Do not use it. Check which index or mirror pip is configured to use: `pip config list`."
            raise EngineError(
                what, kind="install", where="package index", fix=fix, log_tail=tuple(failure.reasons)
            ) from failure
        sdist = Sdist(cached, version, sha256_file(fetched))
        fetched.replace(cached)
    return sdist


def _file_of(version: str) -> re.Pattern[str]:
    return re.compile(rf"llama[-_.]cpp[-_.]python-{re.escape(version)}\.tar\.gz", re.IGNORECASE)


def extract_llama_cpp(sdist: Sdist, into: Path) -> SourceTree:
    """Unpack the llama.cpp tree of `sdist` into the new folder `into`: regular files only, nothing outside of it."""
    commit = None
    unpacked = 0
    with tarfile.open(sdist.path, "r:gz") as archive:
        for member in archive:
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if path == _COMMIT and member.isfile() and member.size < 100 and (head := archive.extractfile(member)):
                commit = head.read().decode("ascii", "replace").strip()
            if not path.is_relative_to(_TREE) or not member.isfile():
                continue  # no links, no devices: the tree needs none
            unpacked += member.size
            if ".." in path.parts or unpacked > _MAX_BYTES or (content := archive.extractfile(member)) is None:
                raise EngineError(
                    "the archive has entries that no source distribution has", kind="install", where=path.name
                )
            target = into / path.relative_to(_TREE)
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("wb") as file:
                shutil.copyfileobj(content, file)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)
    if not (into / "CMakeLists.txt").is_file():
        raise EngineError(f"the archive carries no {_TREE}", kind="install", where=str(sdist.path))
    (into / ".git").unlink(missing_ok=True)  # it would have git look for a repository that was not unpacked
    return SourceTree(into, commit if commit and re.fullmatch(r"[0-9a-f]{40}", commit) else None)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
