"""A Python environment of benchctl's own for an engine that is a Python package, and probing any installed package.

The packages of its lock are pinned by their hashes. The environment has to lie where it will stay (its programs name
their Python by path), so it is not renamed into place: a file written last marks it as complete. An interrupted
installation leaves it without that file, and the next goes on where it stopped. A probe runs by the package's own
Python, and its result is kept while the installation is unchanged: importing takes 10 s and more.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import venv
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO, TypeVar

from benchctl.engines.common.log import clean
from benchctl.engines.common.programs import CommandFailedError, NoAnswerError, run_logged, short_run
from benchctl.engines.common.wire import decode
from benchctl.engines.registry import Report
from benchctl.errors import EngineError, StorageError
from benchctl.models.files import file_sha256, finish, unfinished
from benchctl.paths import cache_folder
from benchctl.recipes.options import IS_OPTION
from benchctl.recipes.problems import did_you_mean
from benchctl.recipes.speculation import SPECULATION_TYPES, Speculation
from benchctl.text import one_line

MARKER = "benchctl.json"
_OFFLINE = ("Failed to establish a new connection", "Temporary failure in name", "ConnectTimeout", "NewConnectionError")


@dataclass(frozen=True)
class PythonEnvironment:
    """An environment and what it holds. Packages come from wheels alone, so no code of theirs runs while installing."""

    engine: str
    """The engine's kind in recipes: `vllm`."""
    name: str
    """The engine's name in messages: `vLLM`."""
    folder: Path
    lock: Path
    """A requirements file with every package, each with its version and hashes."""
    torch: str | None
    """The version of torch that the lock lacks: its builds, and so its hashes, differ by package index. pip also
    installs what a build needs beside the lock, such as CUDA's libraries. `None`: the lock has it."""
    free_bytes: int
    """How much disk must be free."""
    fix: str
    """Tells the user what to do where the index has no build for this machine."""
    program: str = "python"
    """The program in its `bin` that benchctl runs; an environment without it is made anew."""
    download_bytes: int | None = None
    """How much is downloaded, about; `None`: it is not known."""
    cuda_bytes: int | None = None
    """How much disk must be free where torch's build brings CUDA's libraries; `None`: this is not checked."""

    trial: tuple[str, ...] = ("--version",)
    """Arguments with which the program shows that it runs."""
    prepare: Callable[[Path], None] | None = None
    """Called with the folder before the trial."""

    @property
    def program_path(self) -> Path:
        """The file of `program`."""
        return self.folder / "bin" / self.program

    def installed(self) -> Path | None:
        """Return the program of a whole installation; `None` when there is none."""
        complete = (self.folder / MARKER).is_file() and self.program_path.is_file()
        return self.program_path if complete else None

    def install(self, report: Report, *, force: bool = False) -> Path:
        """Install what the lock names, then torch, unless it is whole; `force` makes it anew. Raises BenchctlError."""
        if not force and self.installed():
            return self.program_path
        try:
            with unfinished(self.folder.with_name(f"{self.folder.name}.lock"), lambda text: report(text, 0, 0)):
                if not force and self.installed():  # made by the process that we waited for
                    return self.program_path
                if force or (self.folder / MARKER).is_file():  # without its program
                    shutil.rmtree(self.folder, ignore_errors=True)
                disk = f"{self.free_bytes / 1e9:.0f} GB of disk"
                if self.download_bytes is not None:
                    report(f"it downloads {self.download_bytes / 1e9:.1f} GB and takes up to {disk}.", 0, 0)
                self.check_free(self.free_bytes, f"{self.name} takes {disk}")
                log_path = self.folder.with_name(f"{self.folder.name}.log")
                with log_path.open("w", buffering=1) as log:
                    _Making(self, log, log_path, report).make()
        except OSError as error:
            raise self.disk_error(error.strerror or str(error)) from error
        return self.program_path

    def disk_error(self, reason: str) -> StorageError:
        """Return the error for a full disk."""
        fix = "Free some space, or set BENCHCTL_CACHE to a folder on another disk."
        return StorageError(f"{self.name} could not be installed: {reason}", where=str(self.folder), fix=fix)

    def check_free(self, needed: int, purpose: str) -> None:
        """Raise StorageError where less than `needed` bytes are free; `purpose` begins its sentence."""
        free = shutil.disk_usage(self.folder.parent).free
        if free < needed:
            raise self.disk_error(f"{purpose}, and {free / 1e9:.1f} GB are free")


@dataclass(frozen=True)
class _Making:
    """An environment that is being made."""

    environment: PythonEnvironment
    log: TextIO
    log_path: Path
    report: Report

    def make(self) -> None:
        environment = self.environment
        python, lock = environment.folder / "bin" / "python", environment.lock
        if not python.is_file():
            self.report("making a Python environment", 0, 0)
            venv.create(environment.folder, with_pip=True, symlinks=True)
        count = sum("==" in line for line in lock.read_text("utf-8").splitlines())
        # No resolving: the lock is complete, so that what is installed does not depend on the day.
        locked = ("--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(lock))
        self._pip(f"installing {environment.name}", count, *locked)
        if environment.torch is not None:
            torch = f"torch=={environment.torch}"
            if environment.cuda_bytes is not None:
                self._check_build(torch, environment.cuda_bytes)
            self._pip(f"installing torch {environment.torch}", 0, torch)
        if environment.prepare is not None:
            environment.prepare(environment.folder)
        self.report("trying the result", 0, 0)
        printed = self._run("trying the result", (str(environment.program_path), *environment.trial))
        facts = {
            "schema": 1,
            "torch": environment.torch,
            "lock_sha256": file_sha256(environment.lock),
            "python": platform.python_version(),
            "installed_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "version_output": next((line for line in reversed(printed) if line.strip()), ""),
        }
        part = environment.folder / f".{MARKER}.part"
        part.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
        finish(part, environment.folder / MARKER)

    def _check_build(self, torch: str, cuda_bytes: int) -> None:
        """Check which build of torch the index has: for CUDA it takes many times the disk. Raises StorageError."""
        report_file = self.environment.folder / "torch.json"
        self._pip(f"looking for {torch}", 0, "--dry-run", "--ignore-installed", "--report", str(report_file), torch)
        packages = json.loads(report_file.read_text("utf-8"))["install"]
        if any(package["metadata"]["name"].lower().startswith("nvidia-") for package in packages):
            self.environment.check_free(
                cuda_bytes,
                f"the package index has {torch} with CUDA's libraries for this machine, which takes "
                f"{cuda_bytes / 1e9:.0f} GB of disk (a build for the CPU takes a tenth: have pip use its index)",
            )

    def _pip(self, stage: str, count: int, *arguments: str) -> None:
        packages = 0

        def on_line(line: str) -> None:
            nonlocal packages
            if line.startswith("Installing collected packages"):
                self.report(f"{stage}: unpacking", 0, 0)
            elif line.startswith(("Collecting ", "Processing ", "Requirement already satisfied")):
                packages += 1
                self.report(stage, min(packages, count) if count else packages, count)

        self.report(stage, 0, count)
        pip = (*("-m", "pip", "--disable-pip-version-check", "--no-input"), "install", "--progress-bar", "off")
        self._run(stage, (str(self.environment.folder / "bin" / "python"), *pip, *arguments), on_line)

    def _run(self, stage: str, argv: tuple[str, ...], on_line: Callable[[str], None] | None = None) -> tuple[str, ...]:
        try:
            return run_logged(argv, log=self.log, on_line=on_line)
        except CommandFailedError as failed:
            failure = failed
        text = "\n".join(failure.lines)
        if "No space left on device" in text:
            raise self.environment.disk_error("the disk is full") from failure
        machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
        if "DO NOT MATCH THE HASHES" in text:
            reason = "what the package index has is not what benchctl was tested with (other SHA-256)"
            fix = "Do not use it. Check which index or mirror pip is configured to use: `pip config list`."
        elif any(sign in text for sign in _OFFLINE):  # pip itself blames the package
            reason, fix = "pip could not reach a package index", "Connect, or have pip use a mirror (`pip config`)."
        elif "No matching distribution found" in text:
            reason, fix = f"the package index has no build of it for this machine ({machine})", self.environment.fix
        else:
            reason, fix = f"it ended with status {failure.status}", "The lines above are the first that show an error."
        fix += f" What was downloaded is kept: the same command continues from there. The whole log: {self.log_path}"
        raise EngineError(
            f"{stage}: {reason}", kind="install", where=self.environment.engine, fix=fix, log_tail=failure.tail()
        ) from failure


_LINE_CHARACTERS = 600
PROBE_TIMEOUT_S = 300.0
"""Importing takes 10 s, and minutes on a busy machine."""

Read = TypeVar("Read")


class _UnusableError(Exception):
    """A package that cannot be used: why, and the last lines of its output."""


@dataclass(frozen=True)
class Question:
    """A probe of an installation: `script`, run by its `python` in the environment `env`."""

    package: str
    """The beginning of its distribution's name."""
    program: Path
    """The file by which a user names this installation."""
    python: Path
    script: Path
    env: Mapping[str, str]
    added: Mapping[str, str]
    """The part of `env` that the recipe adds."""

    def answered(self, subject: str, fix: str, read: Callable[[dict[str, Any]], Read]) -> Read:
        """Return what `read` makes of the facts, of an earlier probe or a new one. Raises EngineError (`launch`)."""
        try:
            facts = self.known() or self._ask()
            answer = read(facts)
        except (_UnusableError, KeyError, TypeError, AttributeError, ValueError) as error:
            unusable = isinstance(error, _UnusableError)
            reason, tail = error.args if unusable else (f"it does not report {one_line(str(error), 300)}", ())
            where = str(self.program)
            message = f"{subject} cannot be used: {reason}"
            raise EngineError(message, kind="launch", where=where, fix=fix, log_tail=tail) from None
        self._keep(facts)
        return answer

    def known(self) -> dict[str, Any] | None:
        """Return the kept result of an earlier probe; `None` where there is none."""
        if (file := self._file()) is not None:
            with suppress(OSError, ValueError):
                facts = json.loads(file.read_bytes())
                return facts if isinstance(facts, dict) else None
        return None

    def _ask(self) -> dict[str, Any]:
        """Return the JSON object that the script's last line is. Raises _UnusableError."""
        try:
            argv = (str(self.python), "-c", self.script.read_text("utf-8"))
            # Nothing in the user's folder can stand in for a package.
            answer = short_run(argv, self.env, timeout_s=PROBE_TIMEOUT_S, cwd="/")
        except (NoAnswerError, OSError) as error:
            raise _UnusableError(f"its Python gave no answer: {error}", ()) from None
        lines = [line[:_LINE_CHARACTERS] for line in clean(answer.errors.decode("utf-8", "replace")).splitlines()]
        if answer.status:
            last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
            raise _UnusableError(f"it cannot be imported: {last[:300]}", tuple(lines[-12:]))
        with suppress(ValueError):
            facts = decode(answer.output.strip().rpartition(b"\n")[2])
            if isinstance(facts, dict):
                return facts
        raise _UnusableError("its answer cannot be read", tuple(lines[-12:]))

    def _keep(self, facts: Mapping[str, Any]) -> None:
        """Keep a result; where it cannot be written, the next command probes again."""
        file = self._file()
        if file is not None and not file.exists():
            with suppress(OSError), unfinished(file) as part:
                part.write_text(json.dumps(facts), "utf-8")
                finish(part, file)

    def _file(self) -> Path | None:
        """Return the file of this installation's answer; `None` where a change of the package would go unnoticed."""
        devices = {name: value for name, value in self.env.items() if name.endswith("_VISIBLE_DEVICES")}
        stamps: list[object] = [str(self.program), str(self.python), self.script.read_text("utf-8"), platform.node()]
        stamps.append(sorted({**devices, **self.added}.items()))
        entries = sorted((self.python.parent.parent / "lib").glob("python3*/site-packages/*.dist-info"))
        if not any(entry.name.startswith(self.package) for entry in entries):
            return None
        stamps.append([(str(entry), entry.stat().st_mtime_ns) for entry in entries])
        key = hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:16]
        return cache_folder() / "probes" / f"{self.package}-{key}.json"


def argument_problems(
    args: Sequence[str],
    options: Collection[str] | None,
    reserved: Mapping[str, str],
    title: str,
    named: Callable[[str], str] = lambda argument: argument.partition("=")[0],
) -> list[str]:
    """Return a sentence for every argument that the package lacks (`None`: not known) or that is `reserved`."""
    problems = []
    if args and not IS_OPTION.match(args[0]):
        problems.append(f"`{args[0]}` is not an option; write each option and its value as items of their own.")
    for name in map(named, filter(IS_OPTION.match, args)):
        if name in reserved:
            problems.append(f"{name} may not be among a recipe's arguments; use {reserved[name]}.")
        elif options is not None and name not in options:
            problems.append(f"This {title} has no option {name}.{did_you_mean(name, list(options))}")
    return problems


def named_types(own_names: Mapping[str, str], supported: Sequence[str]) -> tuple[str, ...]:
    """Return the types that recipes may name, benchctl's name first; `own_names`: those, and the package's."""
    names = [recipe_name for recipe_name, name in own_names.items() if name in supported]
    return (*names, *(name for name in supported if name not in own_names.values()))


def type_problems(speculation: Speculation, own_names: Mapping[str, str], title: str) -> list[str]:
    """Return a sentence where the package can do nothing with these types of speculation, whatever its version."""
    if len(speculation.types) > 1:
        return [f"{title} takes one method at a time, not {' and '.join(speculation.types)}."]
    (name,) = speculation.types
    if name in SPECULATION_TYPES and name not in own_names:
        return [f"{title} has nothing like `{name}`. Of benchctl's types it has {', '.join(own_names)}."]
    return []


def unused_keys(speculation: Speculation, keys: Sequence[str], method: str) -> list[str]:
    """Return a sentence for every one of these keys that a speculation sets."""
    unused = [key for key in keys if getattr(speculation, key) is not None]
    return [f"`{key}` has no effect on {method}; its own keys are written in options." for key in unused]


def key_problems(
    keys: Sequence[str], valid: Collection[str], recipe_keys: Mapping[str, str], package: str
) -> list[str]:
    """Return a sentence for every key of a speculation's `options` that the package lacks or the recipe has itself."""
    problems = [f"options.{key}: use instead `{recipe_keys[key]}`." for key in keys if key in recipe_keys]
    unknown = [key for key in keys if key not in recipe_keys and key not in valid]
    return problems + [
        f"options.{key}: this {package} has no such key of speculation.{did_you_mean(key, valid)}" for key in unknown
    ]
