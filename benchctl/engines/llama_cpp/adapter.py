"""llama.cpp's llama-server, declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from benchctl.engines.llama_cpp.options import OPTIONS
from benchctl.recipes.adapters import Adapter
from benchctl.recipes.engine_spec import LaunchedEngineSpec
from benchctl.recipes.flags import read_flags


class LlamaCppSpec(LaunchedEngineSpec):
    """llama.cpp's llama-server, started for every cell."""

    kind: Literal["llama.cpp"] = Field(default="llama.cpp", description="llama.cpp's llama-server.")


def lossy(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """A synthetic acceptance takes draft tokens that the target would not have said."""
    named = {name for name, _ in read_flags(argv)} & {"spec-synth-len", "spec-synth-rates"}
    if named or {"LLAMA_ARG_SPEC_SYNTH_LEN", "LLAMA_ARG_SPEC_SYNTH_RATES"} & set(env):
        return ["synthetic acceptance"]
    return []


ADAPTER = Adapter(
    spec=LlamaCppSpec,
    engine="benchctl.engines.llama_cpp.engine:LlamaCppEngine",
    inventory="benchctl.engines.llama_cpp.find:inventory",
    endpoint="benchctl.engines.llama_cpp.endpoint:FAMILY",
    doctor="benchctl.engines.llama_cpp.doctor:check",
    installer="benchctl.engines.llama_cpp.installer:LlamaCppInstaller",
    model_format="gguf",
    interleaves=True,
    quantizes=True,
    options=OPTIONS,
    lossy=lossy,
    example=(
        "# binary: llama-server   # a path or a name; else the environment, PATH, then benchctl's own build",
        '# args: ["--flash-attn", "on"]   # passed through as they are',
    ),
)
