"""A source distribution, downloaded by pip from where pip and uv are configured to look; its build backend never runs.

pip asks an archive's build backend for its metadata before it keeps the archive. It is given a backend of benchctl's
own, which copies what the archive itself has (`PKG-INFO`): nothing of the package is run, and nothing that it names is
installed. uv's settings (https://docs.astral.sh/uv/reference/settings/) become pip's, in the environment alone: others
can read command lines, and the log keeps them.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote, urlsplit, urlunsplit

from benchctl.engines.common.programs import run_logged

_BACKEND = """
import pathlib
def get_requires_for_build_wheel(settings=None):
    return []
def prepare_metadata_for_build_wheel(folder, settings=None):
    facts = pathlib.Path("PKG-INFO").read_bytes()
    name, version = (facts.split(key)[1].split(b"\\n")[0].strip().decode() for key in (b"\\nName:", b"\\nVersion:"))
    made = pathlib.Path(folder, f"{name.replace('-', '_')}-{version}.dist-info")
    made.mkdir()
    (made / "METADATA").write_bytes(facts)
    return made.name
"""
_AT_START = """
import os
for name in list(os.environ):
    if name.endswith("_BUILD_BACKEND"):
        os.environ[name] = "metadata_alone"
    elif "_BACKEND_PATH" in name:
        del os.environ[name]
"""
"""Run by every Python that pip starts: whatever backend an archive names, or brings, this one is asked."""
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
_SETTING = re.compile(r"^(global|download|:env:)\.(index-url|extra-index-url|find-links)=(.*)$", re.MULTILINE)
_YES = {"1", "true", "yes", "on"}


def download(package: str, version: str, sha256: str | None, into: Path, log: TextIO) -> Path:
    """Return the archive of that version, in the folder `into`, checked where its SHA-256 is known.

    Raises CommandFailedError, whose lines are pip's, and OSError.
    """
    backend = into / "backend"
    backend.mkdir()
    for name, code in (("metadata_alone", _BACKEND), ("sitecustomize", _AT_START)):
        (backend / f"{name}.py").write_text(code)
    (backend / "requirements.txt").write_text(f"{package}=={version}{f' --hash=sha256:{sha256}' if sha256 else ''}\n")
    found = into / "found"
    options = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--use-pep517", "--progress-bar", "off")
    what = ("--dest", str(found), "--requirement", str(backend / "requirements.txt"))
    environment = with_uvs_places(os.environ) | {"PYTHONPATH": str(backend), "PYTHONSAFEPATH": "1"}
    run_logged((*_PIP, "download", *options, *what), log=log, env=environment)
    (archive,) = found.iterdir()
    return archive


def with_uvs_places(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with pip told where uv looks: beside its own places, and for an index only where it has
    none of its own."""
    listed = subprocess.run([*_PIP, "config", "list"], capture_output=True, text=True, check=False, env=environment)
    pip: dict[str, list[str]] = {}
    for _, name, value in sorted(_SETTING.findall(listed.stdout), reverse=True):  # variables win, and come last
        pip[name] = str(ast.literal_eval(value)).split()
    uv = _places_of_uv(environment)
    told = {
        "PIP_INDEX_URL": (pip.get("index-url") or uv["index-url"])[:1],
        "PIP_EXTRA_INDEX_URL": [*pip.get("extra-index-url", ()), *uv["extra-index-url"]],
        "PIP_FIND_LINKS": [*pip.get("find-links", ()), *uv["find-links"]],
        "PIP_NO_INDEX": uv["no-index"],
    }
    return {**environment, **{name: " ".join(values) for name, values in told.items() if values}}


def _places_of_uv(environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Return what uv is told by pip's names: variables before files, the user's file before the system's."""
    own = {name.removeprefix("UV_"): value for name, value in environment.items() if name.startswith("UV_")}
    indexes = [_index(own["DEFAULT_INDEX"]) | {"default": True}] if own.get("DEFAULT_INDEX") else []
    tables: list[dict[str, Any]] = [
        {
            "index": [*indexes, *map(_index, own.get("INDEX", "").split())],
            "index-url": own.get("INDEX_URL"),
            "extra-index-url": own.get("EXTRA_INDEX_URL", "").split(),
            "find-links": [place for place in own.get("FIND_LINKS", "").split(",") if place],
            "no-index": own.get("NO_INDEX", own.get("OFFLINE", "")).lower() in _YES,
        }
    ]
    for file in _files_of_uv(environment):
        with suppress(OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
            tables.append(tomllib.loads(file.read_text("utf-8")))
    found: dict[str, list[str]] = {"index-url": [], "extra-index-url": [], "find-links": [], "no-index": []}
    for table in tables:
        for index in table.get("index") or ():
            name = "index-url" if index.get("default") else "extra-index-url"
            if not index.get("explicit"):
                found["find-links" if index.get("format") == "flat" else name].append(_with_login(index, environment))
        for name in ("index-url", "extra-index-url", "find-links"):
            value = table.get(name) or []
            found[name] += [value] if isinstance(value, str) else value
        found["no-index"] += ["1"] if table.get("no-index") or table.get("offline") else []
    return found


def _files_of_uv(environment: Mapping[str, str]) -> list[Path]:
    if environment.get("UV_NO_CONFIG", "").lower() in _YES:
        return []
    if own := environment.get("UV_CONFIG_FILE"):
        return [Path(own)]
    user = Path(environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or "~").expanduser() / ".config")
    shared = (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    return [folder / "uv" / "uv.toml" for folder in (user, *map(Path, shared), Path("/etc"))]


def _index(text: str) -> dict[str, Any]:
    """Read `NAME=URL` or a URL."""
    match = re.fullmatch(r"([\w.-]+)=(.+)", text)
    return {"name": match[1], "url": match[2]} if match else {"url": text}


def _with_login(index: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return an index's URL, with the user and password that variables give it by its name."""
    url, name = str(index.get("url") or ""), re.sub(r"\W", "_", str(index.get("name") or "")).upper()
    user, password = (environment.get(f"UV_INDEX_{name}_{what}", "") for what in ("USERNAME", "PASSWORD"))
    if not name or not (user or password):
        return url
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{host}"))
