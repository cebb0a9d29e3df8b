"""A fault of a stress test as the bug form of the engine's own project, with the shortest plan that shows it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

from benchctl.analysis.advice import EXAMPLE_PORT
from benchctl.analysis.cells import identity_of
from benchctl.analysis.verdict import describe_speculation
from benchctl.data.writer import LOGS
from benchctl.experiments.stress.judge import ScenarioResult
from benchctl.experiments.stress.stored import Reproduction, StressTest
from benchctl.recipes.adapters import adapter_of
from benchctl.reports.filled_form import FilledForm, prose, shared
from benchctl.reports.render import markdown_block, markdown_text
from benchctl.reports.reproduction import shell_command
from benchctl.words import stress as words


def shell_lines(test: StressTest, shortest: Reproduction) -> tuple[str, list[str]]:
    """Return the engine's command of a shortest plan, and its requests as shell lines."""
    arm = next(arm for arm in test.manifest.arms if arm.name == shortest.arm)
    command = shell_command(arm.model_copy(update={"argv": list(shortest.command)}))
    requests, lines = iter(shortest.requests), list[str]()
    for count in shortest.together:
        for _ in range(count):
            path, body = next(requests)
            line = f"curl -s http://127.0.0.1:{EXAMPLE_PORT}{path} -d {shlex.quote(body)}"
            lines.append(f"{line}{' &' if count > 1 else ''}")
        lines += ["wait"] if count > 1 else []
    return command, lines


def stress_issue(folder: Path, test: StressTest, results: Sequence[ScenarioResult]) -> str | None:
    """Return the form of the first fault that has a shortest plan; `None` where none has, or the engine has no form."""
    form = adapter_of(test.manifest.engine.kind).issue
    for result in results:
        for shortest in test.reproductions:
            if form is not None and (shortest.arm, shortest.scenario) == (result.arm, result.scenario):
                filled = _OfStress(test.manifest, resolve_name(form), result.arm, folder / LOGS, test, result, shortest)
                identity = identity_of(test.manifest, result.arm)
                setting = describe_speculation(identity.speculation if identity else None)
                end = f"Found by benchctl {test.manifest.benchctl_version}, which is not needed to repeat it."
                shown = "fails" if result.failures else result.verdict  # the shortest plan begins with what failed
                return filled.text(filled.form.output, words.title(setting, shown, result.scenario), end)
    return None


@dataclass(frozen=True)
class _OfStress(FilledForm):
    """A form about an arm in a scenario."""

    test: StressTest
    result: ScenarioResult
    shortest: Reproduction

    def problem(self) -> str:
        """Return what was expected, the conclusion, and the first wrong answer beside the right one."""
        result = self.result
        values = result.model_dump()
        values["exercised"]["lacking"] = []  # that the fault kept a scenario from its end is no part of it
        actual = words.conclusion(result.verdict, result.scenario, values)
        blocks = [f"**Expected:** {prose(words.EXPECTED)}", f"**Actual:** {prose(actual)}"]
        if result.shown is not None and not result.failures and not result.unexplained:
            side = self.arm if result.shown.against == "first" else self.manifest.baseline
            answers = (
                (words.answered(result.shown.against), self.test.played[side].answers[result.shown.reference].text),
                (words.answered(None), self.test.played[self.arm].answers[result.shown.request].text),
            )
            blocks += [line for label, text in answers for line in (label, markdown_block(shared(text), "text"))]
        return "\n\n".join(blocks)

    def reproduction(self) -> str:
        """Return the server's command and the requests."""
        command, lines = shell_lines(self.test, self.shortest)
        return "\n\n".join(
            [
                words.START,
                markdown_block(shared(command), "sh"),
                words.SEND,
                markdown_block("\n".join(lines), "sh"),
                markdown_text(shared(words.shows(self.shortest.shown, self.shortest.attempts, self.shortest.shows))),
            ]
        )

    def log_name(self) -> str | None:
        """Return the log of the last attempt at the shortest plan."""
        attempts = [*self.logs.glob(f"short-{self.arm}.log"), *self.logs.glob(f"short-{self.arm}.*.log")]
        return max(attempts, key=lambda log: log.stat().st_mtime).name if attempts else None
