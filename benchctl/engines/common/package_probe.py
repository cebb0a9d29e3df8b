"""Probing an installed Python package with its own Python; the result is kept while the installation is unchanged.

Importing such a package takes 10 s and more, and every command would pay for it.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchctl.engines.common.log import clean
from benchctl.engines.common.short_run import NoAnswerError, short_run
from benchctl.engines.common.values import decode
from benchctl.errors import EngineError
from benchctl.models.files import finish, unfinished
from benchctl.paths import cache_folder

_LINE_CHARACTERS = 600
PROBE_TIMEOUT_S = 300.0
"""Importing takes 10 s, and minutes on a busy machine."""

Unusable = Callable[[str, tuple[str, ...]], EngineError]
"""Makes the error of a package that cannot be used, of what is wrong and the last lines of its output."""


@dataclass(frozen=True)
class Question:
    """One probe of an installation: `script`, run by its `python` in the environment `env`."""

    package: str
    """What its distribution's name begins with."""
    program: Path
    """What a person names when they mean this installation."""
    python: Path
    script: Path
    env: Mapping[str, str]
    added: Mapping[str, str]
    """Of `env`: what the recipe adds."""

    def known(self) -> dict[str, Any] | None:
        """Return the kept result of an earlier probe; `None` where there is none."""
        file = self._file()
        if file is None:
            return None
        try:
            facts = json.loads(file.read_bytes())
        except (OSError, ValueError):
            return None
        return facts if isinstance(facts, dict) else None

    def ask(self, unusable: Unusable) -> dict[str, Any]:
        """Return the JSON object that the script's last line is. Raises EngineError."""
        try:
            argv = (str(self.python), "-c", self.script.read_text("utf-8"))
            # Nothing in the user's folder can stand in for a package.
            answer = short_run(argv, self.env, timeout_s=PROBE_TIMEOUT_S, cwd="/")
        except NoAnswerError as error:
            raise unusable(str(error), ()) from None
        except OSError as error:
            raise unusable(f"its Python cannot be run: {error.strerror}", ()) from None
        lines = [line[:_LINE_CHARACTERS] for line in clean(answer.errors.decode("utf-8", "replace")).splitlines()]
        if answer.status:
            last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
            raise unusable(f"it cannot be imported: {last[:300]}", tuple(lines[-12:]))
        try:
            facts = decode(answer.output.strip().rpartition(b"\n")[2])
        except ValueError:
            facts = None
        if not isinstance(facts, dict):
            raise unusable("its answer cannot be read", tuple(lines[-12:]))
        return facts

    def keep(self, facts: Mapping[str, Any]) -> None:
        """Keep a result; where it cannot be written, the next command probes again."""
        file = self._file()
        if file is None or file.exists():
            return
        try:
            with unfinished(file) as part:
                part.write_text(json.dumps(facts), "utf-8")
                finish(part, file)
        except OSError:
            return

    def _file(self) -> Path | None:
        """Return the file that keeps the answer of this very installation: another package or device, another file.

        `None` where the package's own files are not seen, so that a changed installation would go unnoticed.
        """
        devices = {name: value for name, value in self.env.items() if name.endswith("_VISIBLE_DEVICES")}
        stamps: list[object] = [str(self.program), str(self.python), self.script.read_text("utf-8"), platform.node()]
        stamps.append(sorted({**devices, **self.added}.items()))
        entries = sorted((self.python.parent.parent / "lib").glob("python3*/site-packages/*.dist-info"))
        if not any(entry.name.startswith(self.package) for entry in entries):
            return None
        stamps.append([(str(entry), entry.stat().st_mtime_ns) for entry in entries])
        key = hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:16]
        return cache_folder() / "probes" / f"{self.package}-{key}.json"
