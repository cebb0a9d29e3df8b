"""Where the user's pip and uv look for packages: their configuration files and variables, both where both are set.

https://pip.pypa.io/en/stable/topics/configuration/ and https://docs.astral.sh/uv/reference/settings/ say what is read.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

_INDEX_OF_PIP = re.compile(r'^PyPI = PackageIndex\(\s*"([^"]+)"', re.MULTILINE)
_SOURCE_OF_PIP = "pip/_internal/models/index.py"
_SECTIONS = ("global", "download")
_NOT_READ = ("keyring-provider", "client-cert", "trusted-host", "allow-insecure-host")
"""Settings that decide whether an index answers, and that are not honoured here."""
_YES = {"1", "true", "yes", "on"}


@dataclass(frozen=True)
class Places:
    """Where packages are looked for, as pip and uv are configured."""

    indexes: tuple[str, ...]
    """URLs below which each package has a page."""
    find_links: tuple[str, ...]
    """Folders and pages of files."""
    certificates: str | None = None
    """A file or folder of certificates, instead of the system's."""
    proxy: str | None = None
    """Instead of the one in `HTTPS_PROXY` and its like."""
    not_read: tuple[str, ...] = ()
    """Names of settings that are set and not honoured."""


@dataclass(frozen=True)
class _Configured:
    """What one of the two programs is told; `index` stands for the default index."""

    index: str | None
    more: tuple[str, ...]
    find_links: tuple[str, ...]
    offline: bool
    not_read: tuple[str, ...]


def configured(environment: Mapping[str, str] = os.environ) -> Places:
    """Return where pip and uv would look. The default index counts where neither names another in its place."""
    values = _pip_values(environment)
    pip, uv = _of_pip(values), _of_uv(environment)
    first = [index for index in (pip.index, uv.index) if index] or [default_index() or ""]
    named = dict.fromkeys(filter(None, [*first, *pip.more, *uv.more]))
    return Places(
        () if pip.offline or uv.offline else tuple(named),
        tuple(dict.fromkeys([*pip.find_links, *uv.find_links])),
        values.get("cert") or environment.get("REQUESTS_CA_BUNDLE") or environment.get("CURL_CA_BUNDLE") or None,
        values.get("proxy") or None,
        (*pip.not_read, *uv.not_read),
    )


def _pip_values(environment: Mapping[str, str]) -> dict[str, str]:
    """Return pip's settings by their names in its files."""
    values: dict[str, str] = {}
    for file in _files_of_pip(environment):
        parser = configparser.RawConfigParser()
        with suppress(OSError, configparser.Error, UnicodeDecodeError):
            parser.read(file, encoding="utf-8")
        for section in filter(parser.has_section, _SECTIONS):
            values |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    own = {name.removeprefix("PIP_"): value for name, value in environment.items() if name.startswith("PIP_")}
    return values | {name.lower().replace("_", "-"): value for name, value in own.items()}


def _of_pip(values: Mapping[str, str]) -> _Configured:
    return _Configured(
        values.get("index-url") or None,
        tuple(values.get("extra-index-url", "").split()),
        tuple(values.get("find-links", "").split()),
        values.get("no-index", "").lower() in _YES,
        tuple(f"pip's {name}" for name in _NOT_READ if values.get(name)),
    )


def _files_of_pip(environment: Mapping[str, str]) -> list[Path]:
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


def _of_uv(environment: Mapping[str, str]) -> _Configured:
    """Return what uv is told: variables before files, the user's file before the system's."""
    variables = _uv_variables(environment)
    settings = [variables, *(table for file in _files_of_uv(environment) for table in _uv_tables(file))]
    listed = [index for table in settings for index in _dicts(table.get("index")) if not index.get("explicit")]
    default = [index for index in listed if index.get("default")]
    flat = [index for index in listed if index.get("format") == "flat" and index not in default]
    usual = [index for index in listed if index not in default and index not in flat]
    index_urls = [_url(index, environment) for index in default] + _texts(settings, "index-url")
    more = [_url(index, environment) for index in usual] + _texts(settings, "extra-index-url")
    return _Configured(
        next(filter(None, index_urls), None),
        tuple(filter(None, more)),
        (*filter(None, (_url(index, environment) for index in flat)), *_texts(settings, "find-links")),
        any(table.get(name) in (True, *_YES) for table in settings for name in ("no-index", "offline")),
        tuple(f"uv's {name}" for name in _NOT_READ if any(table.get(name) for table in settings)),
    )


def _uv_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the variables in the shape of a file."""
    own = {name.removeprefix("UV_"): value for name, value in environment.items() if name.startswith("UV_")}
    table: dict[str, Any] = {name.lower().replace("_", "-"): value for name, value in own.items()}
    table["extra-index-url"] = table.get("extra-index-url", "").split()
    table["find-links"] = [place for place in table.get("find-links", "").split(",") if place]
    indexes = [_named(text) for text in own.get("INDEX", "").split()]
    default = [_named(own["DEFAULT_INDEX"]) | {"default": True}] if own.get("DEFAULT_INDEX") else []
    return table | {"index": default + indexes}


def _named(text: str) -> dict[str, Any]:
    """Read `NAME=URL` or a URL."""
    match = re.fullmatch(r"([\w.-]+)=(.+)", text)
    return {"name": match[1], "url": match[2]} if match else {"url": text}


def _files_of_uv(environment: Mapping[str, str]) -> list[Path]:
    if environment.get("UV_NO_CONFIG", "").lower() in _YES:
        return []
    if own := environment.get("UV_CONFIG_FILE"):
        return [Path(own)]
    home = Path(environment.get("HOME") or "~").expanduser()
    user = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    shared = (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    return [folder / "uv" / "uv.toml" for folder in (user, *map(Path, shared), Path("/etc"))]


def _uv_tables(file: Path) -> Iterator[dict[str, Any]]:
    with suppress(OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        table = tomllib.loads(file.read_text("utf-8"))
        yield table
        yield from _dicts([table.get("pip")])


def _dicts(value: object) -> list[dict[str, Any]]:
    return [table for table in value if isinstance(table, dict)] if isinstance(value, list) else []


def _texts(settings: list[dict[str, Any]], name: str) -> list[str]:
    values = [table.get(name) for table in settings]
    listed = [value if isinstance(value, list) else [value] for value in values]
    return [text for texts in listed for text in texts if isinstance(text, str) and text]


def _url(index: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return an index's URL, with the user and password that variables give it by its name."""
    url, name = str(index.get("url") or ""), re.sub(r"\W", "_", str(index.get("name") or "")).upper()
    user, password = (environment.get(f"UV_INDEX_{name}_{what}", "") for what in ("USERNAME", "PASSWORD"))
    if not name or not (user or password):
        return url
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{host}"))


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
