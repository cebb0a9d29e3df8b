"""Whether two runs measured the same work, and what else changed between them.

Prompts, sampling and models must be equal, or no speed can be compared. Everything else (engine, machine, settings of
the arms) may differ: that is what is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchctl.analysis.answers import Answers, same_answer
from benchctl.analysis.conditions.results import DIMENSIONS
from benchctl.analysis.frame import Frame, PromptKey
from benchctl.analysis.result import Result
from benchctl.data.manifest import Manifest, ModelIdentity
from benchctl.data.record import Record
from benchctl.data.store import RunData
from benchctl.errors import UsageError
from benchctl.text import one_line

NAMED = 3
"""Prompts that a refusal lists; the others are counted."""
_MACHINE = (
    *("cpu", "cores", "usable_cores", "memory_bytes", "accelerators", "os", "kernel"),
    *("governor", "boost", "virtualised", "container"),
)
_ABSENT = "none"

PromptHashes = dict[tuple[str, int], str | None]
"""SHA-256 of every prompt by (task, prompt_idx); `None` where it is not reported."""


class Change(Result):
    """A thing that is not the same in both runs."""

    what: str
    a: str
    b: str


def require_same_workload(a: RunData, b: RunData) -> list[str]:
    """Return what could not be checked, in sentences. Raises UsageError listing every part that differs."""
    if not (a.manifest and b.manifest):
        _refuse([*_prompts(_recorded(a.records), _recorded(b.records))], a, b)
        return ["That models, sampling and prompts are the same was not checked: some run has no manifest."]
    parts = [*_conditions(a.manifest, b.manifest)]
    if a.manifest.workload_sha256 != b.manifest.workload_sha256:
        parts = [*_questions(a.manifest, b.manifest), *parts]
        models = [
            f"{name} model: {_model_name(ours)} and {_model_name(theirs)}"
            for name, ours, theirs in (
                ("target", a.manifest.target, b.manifest.target),
                ("draft", a.manifest.draft, b.manifest.draft),
            )
            if _hashes(ours) != _hashes(theirs)
        ]
        if models and not parts:
            _refuse(models, a, b, OtherModelsError)
        parts += models
        parts = parts or ["their workload hashes differ, although no part does: other versions of benchctl made them"]
    _refuse(parts, a, b)
    return []


def require_same_questions(a: RunData, b: RunData) -> list[str]:
    """Return what could not be checked, in sentences: only prompts and sampling must be the same. Raises UsageError."""
    if a.manifest and b.manifest:
        parts = [*_questions(a.manifest, b.manifest)]
        ours, theirs = a.manifest.target.facts, b.manifest.target.facts
        for fact in ("vocab_size", "layers"):
            first, second = ours.get(fact), theirs.get(fact)
            if first is not None and second is not None and first != second:
                parts.append(f"the target's {fact.replace('_', ' ')}: {_rendered(first)} and {_rendered(second)}")
    else:
        parts = [*_prompts(_recorded(a.records), _recorded(b.records))]
    _refuse(parts, a, b, compared="answers")
    same = a.manifest and b.manifest and _hashes(a.manifest.target) == _hashes(b.manifest.target)
    return [] if same else [f"That {a.name} and {b.name} ran the same model was not checked: their files differ."]


def find_changes(a: RunData, b: RunData) -> list[Change]:
    """Return what differs between the runs beside the workload, the most important first."""
    changes = setting_changes(a.manifest, b.manifest) if a.manifest and b.manifest else []
    first, second = _recorded(a.records), _recorded(b.records)
    differing = [key for key in first if None not in (first[key], second.get(key)) and first[key] != second[key]]
    if differing:
        named = f"{differing[0][0]}/{differing[0][1]}"
        example = f"{len(differing)} of {len(first)} prompts, such as {named}"
        changes.append(
            Change(what="rendered prompt text", a=f"SHA-256 {first[differing[0]]}"[:20], b=f"differs for {example}")
        )
    return changes


def setting_changes(a: Manifest, b: Manifest) -> list[Change]:
    """Return what differs in the manifests beside the workload."""
    ours, theirs = dict(_settings(a)), dict(_settings(b))
    pairs = [(name, ours.get(name), theirs.get(name)) for name in dict.fromkeys([*ours, *theirs])]
    return [Change(what=name, a=_rendered(x), b=_rendered(y)) for name, x, y in pairs if x != y]


def rendered_settings(manifest: Manifest) -> dict[str, str]:
    """Return what a manifest records beside the workload, as changes show it."""
    return {name: _rendered(value) for name, value in _settings(manifest) if value is not None}


def is_repeat(a: Manifest, b: Manifest) -> bool:
    """Whether two runs measured the same work with nothing changed but the time, and how many blocks there are."""
    return a.workload_sha256 == b.workload_sha256 and {change.what for change in setting_changes(a, b)} <= {"blocks"}


def two_sides(manifests: Iterable[Manifest]) -> tuple[list[int], list[int]] | None:
    """Return the places of the runs that repeat the first, and of the others, which repeat each other.

    `None` where the runs are not of two settings and the same workload; no manifest after that is read.
    """
    settings: list[tuple[Manifest, list[int]]] = []
    for number, manifest in enumerate(manifests):
        places = next((places for setting, places in settings if is_repeat(setting, manifest)), None)
        if places is not None:
            places.append(number)
        elif len(settings) == 2 or (settings and settings[0][0].workload_sha256 != manifest.workload_sha256):
            return None
        else:
            settings.append((manifest, [number]))
    return (settings[0][1], settings[1][1]) if len(settings) == 2 else None


class OtherModelsError(UsageError):
    """Two runs of the same prompts on other models: their speed-ups can be compared, their answers cannot."""


def _refuse(
    parts: list[str], a: RunData, b: RunData, error: type[UsageError] = UsageError, *, compared: str = "speeds"
) -> None:
    """Raise an error that lists what differs, if anything does."""
    same = (
        "prompts, sampling, models and load; engine, machine"
        if compared == "speeds"
        else "model, prompts and sampling; engine, precision"
    )
    if parts:
        raise error(
            "\n  ".join(
                [f"The runs did different work, so their {compared} cannot be compared.", *map(one_line, parts)]
            ),
            where=f"{a.folder} and {b.folder}",
            fix=f"Measure both with the same {same} and arms may differ.",
        )


def _questions(a: Manifest, b: Manifest) -> Iterator[str]:
    """Prompts and sampling."""
    ours, theirs = (
        {(prompt.task, prompt.prompt_idx): prompt.sha256 for prompt in manifest.prompts} for manifest in (a, b)
    )
    yield from _prompts(ours, theirs)
    before, after = a.recipe.get("sampling") or {}, b.recipe.get("sampling") or {}
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key):
            yield f"sampling.{key}: {_rendered(before.get(key))} and {_rendered(after.get(key))}"


def _recorded(records: list[Record]) -> PromptHashes:
    hashes: PromptHashes = {}
    for record in records:
        key = (record.task, record.prompt_idx)
        if record.phase == "measure" and hashes.get(key) is None:
            hashes[key] = record.prompt_sha
    return hashes


def _prompts(a: Mapping[PromptKey, str | None], b: Mapping[PromptKey, str | None]) -> Iterator[str]:
    differing = [key for key in a if key in b and None not in (a[key], b[key]) and a[key] != b[key]]
    for difference, keys in (
        ("prompts with different text", differing),
        ("prompts that only the first run has", [key for key in a if key not in b]),
        ("prompts that only the second run has", [key for key in b if key not in a]),
    ):
        if keys:
            named = ", ".join(f"{task}/{index}" for task, index in keys[:NAMED])
            remaining = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
            yield f"{difference}: {named}{remaining}"


def _conditions(a: Manifest, b: Manifest) -> Iterator[str]:
    """Arms of the same name that ran under different conditions: they share only the name."""
    theirs = {arm.name: arm for arm in b.arms}
    for arm in a.arms:
        for dimension in DIMENSIONS:
            before, after = getattr(arm, dimension), getattr(theirs.get(arm.name, arm), dimension)
            if before != after:
                yield f"{dimension} of arm {arm.name}: {_rendered(before)} and {_rendered(after)}"


def _hashes(model: ModelIdentity | None) -> list[str]:
    return [file.sha256 for file in model.files] if model else []


def _model_name(model: ModelIdentity | None) -> str:
    if model is None or not model.files:
        return _ABSENT
    return f"{model.files[0].name} (SHA-256 {model.files[0].sha256[:12]})"


def _settings(manifest: Manifest) -> Iterator[tuple[str, Any]]:
    """Everything of interest beside the workload, by name."""
    engine, details = manifest.engine, manifest.engine.details
    yield from (("engine", engine.kind), ("engine version", engine.version), ("engine commit", engine.commit))
    yield "engine build", engine.build
    yield "engine binary", str(details["sha256"])[:12] if details.get("sha256") else None
    yield "engine libraries", details.get("siblings") or None
    for key, value in (manifest.recipe.get("engine") or {}).items():
        if key not in ("kind", "binary"):
            yield f"engine.{key}", value or None
    for arm in manifest.recipe.get("arms") or []:
        if isinstance(arm, Mapping):
            yield f"arm {arm.get('name')}", {key: arm[key] for key in ("speculation", "args") if arm.get(key)} or None
    for key in _MACHINE:
        yield f"machine {key.replace('_', ' ')}", manifest.machine.get(key)
    yield from (("blocks", manifest.blocks), ("schedule", manifest.recipe.get("schedule") or "blocks"))
    yield from (("warm-ups", manifest.recipe.get("warmup")), ("baseline", manifest.baseline))
    yield "benchctl", manifest.benchctl_version


def _rendered(value: object) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key} {_rendered(part)}" for key, part in value.items() if part is not None and part != [])
        return one_line(inner, 160)
    if isinstance(value, list | tuple):
        return one_line(" ".join(_rendered(element) for element in value), 160) or _ABSENT
    return _ABSENT if value is None else one_line(str(value), 160)


class Outputs(Result):
    """Prompts of an arm by whether both runs answered them alike; together they are all prompts of both runs."""

    same: int
    differing: list[str]
    """`task/prompt_idx`: each run reproduces its own answer, and the two differ."""
    undetermined: list[str]
    """A run has no sound answer or none that it reproduces, the rendered prompts differ, or requests overlapped."""
    kept: bool = True
    """Whether both runs' answers are there: a baseline's in a file are not."""

    @property
    def alike(self) -> bool:
        """Whether all answers are the same."""
        return self.kept and not self.differing and not self.undetermined


def compare_answers(a: Frame, answers_a: Answers, b: Frame, answers_b: Answers, arm: str) -> Outputs:
    """Compare the answers of an arm that both frames have; nothing is equal by absence."""
    ours, theirs = sound_answers(a, answers_a, arm), sound_answers(b, answers_b, arm)
    named: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for key in dict.fromkeys([*a.prompts, *b.prompts]):
        named[agree(ours.get(key), theirs.get(key))].append(f"{key[0]}/{key[1]}")
    return Outputs(same=len(named[True]), differing=named[False], undetermined=named[None])


def agree(first: Record | None, second: Record | None) -> bool | None:
    """Whether two sound answers to a prompt are the same; `None` where either is lacking, or had another prompt."""
    if first is None or second is None or not same_prompt(first, second):
        return None
    return same_answer(first, second)


def sound_answers(frame: Frame, answers: Answers, arm: str) -> dict[PromptKey, Record]:
    """Return the answer to every prompt that an arm answered soundly and alike in all blocks."""
    rows = frame.row_at[frame.arms.index(arm)]
    sound = answers.sound[rows].all(axis=0)
    by_prompt = {
        key: [frame.records[row] for row in rows[:, column].tolist()]
        for column, key in enumerate(frame.prompts)
        if sound[column]
    }
    return {
        key: records[0]
        for key, records in by_prompt.items()
        if records and all(agree(records[0], record) for record in records[1:])
    }


def same_prompt(first: Record, second: Record) -> bool:
    """Whether the rendered prompts are equal, as far as both are reported."""
    return first.prompt_sha is None or second.prompt_sha is None or first.prompt_sha == second.prompt_sha
