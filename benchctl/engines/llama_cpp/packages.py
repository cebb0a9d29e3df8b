"""A file of a package, fetched from the indexes and folders that the user configured for pip or uv.

`pip download` would run the build backend that the package names, unpinned, and an environment made by uv has no pip
to run. Here the file alone comes, through
https://packaging.python.org/en/latest/specifications/simple-repository-api/.
"""

from __future__ import annotations

import hashlib
import json
import netrc
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TextIO
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import url2pathname

import certifi
import httpx

from benchctl.engines.llama_cpp.package_places import Places, configured

_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_MOST_PAGE, _MOST_FILE = 64 * 1024**2, 1024**3
"""Bytes."""
_TIMEOUT_S = 60.0


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


def fetch(package: str, name: re.Pattern[str], sha256: str | None, into: Path, log: TextIO) -> None:
    """Write the package's file of that name to `into`, its SHA-256 checked where one is known. Raises IndexFailure.

    Raises OSError for `into`.
    """
    places, reasons, other_bytes = configured(), list[str](), False
    if not (places.indexes or places.find_links):
        reasons.append("no index is configured (PIP_INDEX_URL or UV_DEFAULT_INDEX names one)")
    with _client(places) as client:
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
            except httpx.HTTPStatusError as error:
                reasons.append(f"{shown(str(error.request.url))}: {_status(error.response.status_code)}")
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                reasons.append(f"{shown(page)}: {type(error).__name__}")
            except OSError as error:
                if error.filename is not None and Path(error.filename) == into:
                    raise
                reasons.append(f"{shown(page)}: {error.strerror or type(error).__name__}")
    if places.not_read:
        reasons.append(f"not honoured here: {', '.join(places.not_read)}")
    raise IndexFailure(reasons, other_bytes=other_bytes)


def _client(places: Places) -> httpx.Client:
    """Return a client that trusts the named certificates, or else the system's and those that come with httpx.

    Raises IndexFailure.
    """
    own = places.certificates
    try:
        folder, file = (own, None) if own and Path(own).is_dir() else (None, own)
        context = ssl.create_default_context(capath=folder, cafile=file)
        if not own:
            context.load_verify_locations(certifi.where())
        return httpx.Client(verify=context, proxy=places.proxy, timeout=_TIMEOUT_S, follow_redirects=True)
    except (OSError, ValueError) as error:
        reason = f"the configured certificates or proxy cannot be used: {type(error).__name__}"
        raise IndexFailure([reason], other_bytes=False) from None


def _status(code: int) -> str:
    wants = " (it wants a user and password: those of the URL and of netrc are sent, a keyring is not asked)"
    return f"HTTP {code}{wants if code in {401, 403, 407} else ''}"


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
    login = login or _of_netrc(url)
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
    # A page may name any host: over a connection that others can read, only the page's own host gets a password.
    login = link.login or (_of_netrc(link.url) if urlsplit(link.url).scheme == "https" else None)
    with client.stream("GET", link.url, auth=login) as answer:
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


def _of_netrc(url: str) -> tuple[str, str] | None:
    """Return user and password of the URL's host in the user's netrc file."""
    with suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
        found = netrc.netrc(os.environ.get("NETRC")).authenticators(urlsplit(url).hostname or "")
        return (found[0], found[2] or "") if found else None
    return None
