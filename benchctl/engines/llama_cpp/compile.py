"""One build of llama.cpp in a folder of its own: configure, compile, try, and build again where the result crashes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from benchctl.engines.common.logged_command import CommandFailedError, run_logged
from benchctl.engines.llama_cpp.builds import Backend, Build, Host
from benchctl.engines.llama_cpp.failed_build import crashes, explain
from benchctl.engines.llama_cpp.processor_features import LeftOut, without_more_and_more
from benchctl.engines.llama_cpp.source import Sdist, SourceTree, extract_llama_cpp, sha256_file
from benchctl.engines.llama_cpp.toolchain import Toolchain
from benchctl.engines.llama_cpp.trial import Trial, try_quantized

TARGETS = ("llama-server", "llama-quantize", "llama-perplexity")

Report = Callable[[str, int, int], None]
"""Told what is being done, and how many of how many steps are; 0 of 0 when that is not known."""


@dataclass(frozen=True)
class Work:
    """What one build goes by."""

    folder: Path
    """Everything is written below it."""
    toolchain: Toolchain
    backend: Backend
    flags: tuple[str, ...]
    jobs: int
    log: TextIO
    log_path: Path
    report: Report

    def run(self, step: str, *argv: str, on_line: Callable[[str], None] | None = None) -> tuple[str, ...]:
        """Run one step of the build. Raises BenchctlError that says what to do."""
        env = {**os.environ, "NINJA_STATUS": "[%f/%t] ", "CLICOLOR_FORCE": "0"}
        if self.toolchain.nvcc:
            env.setdefault("CUDACXX", self.toolchain.nvcc)
        try:
            return run_logged(argv, log=self.log, env=env, on_line=on_line)
        except CommandFailedError as failure:
            raise explain(step, failure, self.log_path) from failure


def make_build(work: Work, sdist: Sdist, key: str) -> Path:
    """Return the folder with `bin` and `build.json` of a build that has answered with quantized models.

    One that crashes on them is built again without the instructions that may be the reason. Raises BenchctlError.
    """
    started = time.monotonic()
    work.report("unpacking the source", 0, 0)
    source = extract_llama_cpp(sdist, work.folder / "source")
    # A plain build of the unpacked archive counts one commit, too: its history is cut off. The commit is what tells.
    identity = ("-DLLAMA_BUILD_NUMBER=1", f"-DLLAMA_BUILD_COMMIT={(source.commit or 'unknown')[:7]}")
    variants: Iterator[LeftOut] = without_more_and_more(work.toolchain.cxx)
    left_out = LeftOut()
    while True:
        flags = (*_flags(work.flags, left_out), *identity)
        server, told = _compiled(work, source, flags)
        tried = _tried(work, server)
        if not tried.crashed:
            break
        next_one = next(variants, None)
        if next_one is None:
            raise crashes(tried.crashed, left_out.features, work.log_path)
        left_out = next_one
        work.log.write(f"Crashed: {'; '.join(tried.crashed)}. Building without {', '.join(left_out.features)}.\n")
        work.report(f"crashed with quantized models; building again without {left_out.features[-1]}", 0, 0)
    work.report("putting it in place", 0, 0)
    staged = work.folder / "staged"
    (staged / "bin").mkdir(parents=True)
    for name in TARGETS:
        shutil.move(server.with_name(name), staged / "bin" / name)
    finished = Build(
        folder=staged,
        version=sdist.version,
        backend=work.backend,
        key=key,
        commit=source.commit,
        sdist_sha256=sdist.sha256,
        flags=flags,
        compiler=work.toolchain.compiler,
        cmake=work.toolchain.cmake_version,
        host=Host.here(),
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        build_s=round(time.monotonic() - started, 1),
        version_output=" · ".join(line for line in told if line.strip()),
        files={name: sha256_file(staged / "bin" / name) for name in TARGETS},
        left_out=left_out.features,
    )
    (staged / "build.json").write_text(json.dumps(finished.to_json(), indent=1) + "\n")
    tried.write(staged)
    return staged


def _compiled(work: Work, source: SourceTree, flags: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """Configure and compile; return the llama-server, which has started once, and the version that it printed."""
    toolchain, build = work.toolchain, work.folder / "build"
    work.report("configuring", 0, 0)
    generator = ("-G", toolchain.generator, f"-DCMAKE_MAKE_PROGRAM={toolchain.maker}")
    work.run("configure", toolchain.cmake, "-S", str(source.folder), "-B", str(build), *generator, *flags)

    def on_line(line: str) -> None:
        if (step := re.match(r"\[\s*(\d+)/(\d+)\]", line)) or (step := re.match(r"\[\s*(\d+)(%)\]", line)):
            work.report("compiling", int(step[1]), 100 if step[2] == "%" else int(step[2]))

    jobs = ("--parallel", str(work.jobs))
    work.run("compile", toolchain.cmake, "--build", str(build), *jobs, "--target", *TARGETS, on_line=on_line)
    server = build / "bin" / "llama-server"
    work.report("trying the result", 0, 0)
    return server, work.run("try", str(server), "--version")


def _tried(work: Work, server: Path) -> Trial:
    """Have the server answer with quantized models; what failed is in the log, too."""
    done = 0

    def on_case(case: str) -> None:
        nonlocal done
        work.report(f"trying it with {case}", done, 0)
        done += 1

    failures = try_quantized(server, on_case)
    for failure in failures:
        work.log.write(f"{failure.case}: {failure.error.what}\n" + "".join(f"  {x}\n" for x in failure.error.log_tail))
    work.log.flush()
    return Trial.of(failures)


def _flags(flags: tuple[str, ...], left_out: LeftOut) -> tuple[str, ...]:
    """Add what leaves instructions out; flags of the compilers that the user gave stay."""
    if not left_out.compiler_flags:
        return (*flags, *left_out.cmake_args)
    added = []
    for language in ("C", "CXX"):
        own = os.environ.get(f"{language}FLAGS", "")
        for flag in flags:
            if given := re.match(rf"-DCMAKE_{language}_FLAGS(?::\w+)?=(.*)", flag, re.DOTALL):
                own = given[1]
        added.append(f"-DCMAKE_{language}_FLAGS={' '.join([own, shlex.join(left_out.compiler_flags)]).strip()}")
    return (*flags, *left_out.cmake_args, *added)
