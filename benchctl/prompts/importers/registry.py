"""The formats that benchctl imports."""

from __future__ import annotations

from benchctl.errors import UsageError
from benchctl.prompts.importers import humaneval, json_lines, mt_bench, spec_bench, speed_bench
from benchctl.prompts.importers.format import Format
from benchctl.recipes.problems import did_you_mean, quoted

FORMATS: dict[str, Format] = {
    module.FORMAT.name: module.FORMAT for module in (spec_bench, mt_bench, humaneval, speed_bench, json_lines)
}


def find_format(name: str) -> Format:
    """Return the format called `name`; raises UsageError with the nearest one."""
    if name not in FORMATS:
        fix = did_you_mean(name, FORMATS).strip() or f"One of: {', '.join(FORMATS)}."
        raise UsageError(f"there is no format {quoted(name)}", where="--format", fix=fix)
    return FORMATS[name]
