"""What a native build can leave out of the processor it is for, where the code that uses it crashes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class LeftOut:
    """Instructions that a build does without, and how the build is told: flags of the compilers, CMake arguments."""

    features: tuple[str, ...] = ()
    compiler_flags: tuple[str, ...] = ()
    cmake_args: tuple[str, ...] = ()

    def with_more(self, more: LeftOut) -> LeftOut:
        """Return both together."""
        return LeftOut(
            self.features + more.features,
            self.compiler_flags + more.compiler_flags,
            self.cmake_args + more.cmake_args,
        )


_OPTIONAL = {
    # llama.cpp's code for each is compiled only where the compiler defines the macro.
    "__AMX_TILE__": LeftOut(("AMX",), ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")),
    "__AVX512F__": LeftOut(("AVX-512",), ("-mno-avx512f",)),
}
"""By the macro that a compiler defines where it uses them; the likeliest to crash first."""
_ANY_SUCH_PROCESSOR = LeftOut(("all that only some processors of its kind have",), (), ("-DGGML_NATIVE=OFF",))


def without_more_and_more(compiler: str) -> Iterator[LeftOut]:
    """Yield what a build for this processor is told to leave out, a little more each time."""
    defined = _macros(compiler)
    left_out = LeftOut()
    for macro, feature in _OPTIONAL.items():
        if macro in defined:
            left_out = left_out.with_more(feature)
            yield left_out
    yield left_out.with_more(_ANY_SUCH_PROCESSOR)


def _macros(compiler: str) -> frozenset[str]:
    """Return the names of what `compiler` defines when it compiles for this processor; none where it cannot tell."""
    argv = [compiler, "-march=native", "-dM", "-E", "-x", "c++", "/dev/null"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(re.findall(r"^#define (\w+)", done.stdout, re.MULTILINE))
