"""Files of acceptance lengths: published lengths to compare with, and the lengths of a run to share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from benchctl.analysis.breakeven import Reference, measured_arms
from benchctl.errors import StorageError, UsageError
from benchctl.writing import write_whole

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData


def read_references(file: Path) -> list[Reference]:
    """Read acceptance lengths in the YAML of InferenceX's golden_al_distribution, as are written.

        model: {thinking_on: {3: 2.52}}     # model, mode, draft depth: tokens a round, the target's own included

    Top-level keys that begin with `_` describe the file. Raises UsageError that names the place, StorageError.
    """
    import yaml
    from pydantic import Field, TypeAdapter, ValidationError

    by_depth = dict[Annotated[int, Field(ge=1)], Annotated[float, Field(ge=1, allow_inf_nan=False)]]
    try:
        models = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
        if isinstance(models, dict):
            models = {model: modes for model, modes in models.items() if not str(model).startswith("_")}
        lengths_by_model = TypeAdapter(dict[str, dict[str, by_depth]]).validate_python(models)
    except OSError as error:
        raise StorageError(f"The reference cannot be read: {error.strerror}.", where=str(file)) from None
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"] if part != "[key]")
        raise UsageError(
            f"Expected model: {{mode: {{depth: acceptance length}}}}: {first['msg']}.",
            where=": ".join(filter(None, (str(file), path))),
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"The reference is not UTF-8 YAML: {str(error).splitlines()[0]}.", where=str(file)) from None
    rows = [
        Reference(model=model, mode=mode, depth=depth, acceptance_length=length)
        for model, modes in lengths_by_model.items()
        for mode, lengths in modes.items()
        for depth, length in lengths.items()
    ]
    for row in rows:
        if row.acceptance_length > row.depth + 1:
            raise UsageError(
                f"An acceptance length at depth {row.depth} lies between 1 and {row.depth + 1}; this is "
                f"{row.acceptance_length:g}.",
                where=f"{file}: {row.model}.{row.mode}.{row.depth}",
            )
    return rows


def write_references(file: Path, references: Sequence[Reference], about: Sequence[str]) -> None:
    """Write acceptance lengths; `about` becomes comments. Raises StorageError."""
    import yaml

    document: dict[str, dict[str, dict[int, float]]] = {}
    for row in references:
        document.setdefault(row.model, {}).setdefault(row.mode, {})[row.depth] = round(row.acceptance_length, 2)
    comments = "".join(f"# {' '.join(line.split())}\n" for line in about)
    write_whole(file, comments + yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def acceptance_lengths(run: RunData, analysis: Analysis) -> list[Reference]:
    """The acceptance lengths of a run's real drafts, by the models they ran on; the mode is how they are drafted."""
    settings = {verdict.arm: verdict.setting.partition(",")[0] for verdict in analysis.verdicts}
    references = []
    for arm in measured_arms(analysis, run.manifest):
        if not arm.synthetic and arm.tokens is not None:
            on = analysis.compared[arm.name]
            models = [Path(model.source).name for model in (on.target, on.draft) if model is not None]
            name = " + ".join(models or [analysis.recipe]) + (f" ({on.setup})" if on.setup else "")
            mode = settings[arm.name]
            references.append(Reference(model=name, mode=mode, depth=arm.depth, acceptance_length=arm.tokens))
    return references


def measured_with(run: RunData, analysis: Analysis) -> list[str]:
    """What acceptance lengths were measured with, a line each."""
    recipe = run.manifest.recipe if run.manifest else {}
    prompts = {**(recipe.get("prompts") or {})}
    for key in ("suite", "context"):  # their folders are nobody else's
        if prompts.get(key):
            prompts[key] = Path(str(prompts[key])).name
    return [
        "Acceptance lengths: tokens per verification step, the target's own included.",
        f"run {analysis.run} of {analysis.recipe}, sampling {json.dumps(recipe.get('sampling'))}, "
        f"prompts {json.dumps(prompts)}",
        "model: mode (how it drafts): draft depth: acceptance length",
    ]
