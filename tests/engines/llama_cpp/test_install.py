"""The whole path from a source distribution to programs that run, with a CMake project that builds in seconds."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.llama_cpp.build import Build, builds_folder, installed_builds
from benchctl.engines.llama_cpp.engine import LlamaCppEngine
from benchctl.engines.llama_cpp.installation import install, search
from benchctl.engines.llama_cpp.trial import try_quantized
from benchctl.engines.registry import Backend, InstallOptions
from benchctl.errors import EngineError, StorageError, UsageError
from tests.waiting import LIMIT_S, wait_for

pytestmark = pytest.mark.slow

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FAKE = Path(__file__).parents[1] / "fake_llama_cpp"
INSTALL = """
import os, shlex, sys
from pathlib import Path
from benchctl.engines.llama_cpp.installation import install
from benchctl.engines.registry import InstallOptions
os.environ["CMAKE_ARGS"] = shlex.join(sys.argv[2:])
print(install(InstallOptions("cpu", sdist=Path(sys.argv[1])),
              lambda stage, done, total: print(stage, flush=True)).folder, flush=True)
"""


def pack(path: Path, version: str = "0.0.1", extra: dict[str, bytes] | None = None) -> Path:
    """Write a source distribution like llama-cpp-python's around the fake project."""
    files = {f"vendor/llama.cpp/{file.name}": file.read_bytes() for file in FAKE.iterdir()}
    files[".git/modules/vendor/llama.cpp/HEAD"] = f"{COMMIT}\n".encode()
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {**files, **(extra or {})}.items():
            member = tarfile.TarInfo(f"llama_cpp_python-{version}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def sdist(tmp_path: Path) -> Path:
    return pack(tmp_path / "fake.tar.gz")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("BENCHCTL_LLAMA_SERVER", "CMAKE_ARGS", "CXX", "CXXFLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Stages(list[str]):
    """Remembers what an installation reported."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.append(f"{stage} {done}/{total}" if total else stage)


def unfinished() -> list[Path]:
    return list(builds_folder().glob(".building-*"))


def test_builds_once_and_is_found_again(sdist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages()
    build = install(InstallOptions("cpu", sdist=sdist), stages)
    assert build.version == "0.0.1"
    assert build.commit == COMMIT
    assert build.version_output == "version: 0.0.1-fake (build 1, commit 0123456)"
    assert set(build.files) == {"llama-server", "llama-quantize", "llama-perplexity"}
    output = subprocess.run([build.binary("llama-quantize")], capture_output=True, text=True, check=True).stdout
    assert "0.0.1-fake" in output
    assert any(stage.startswith("compiling") for stage in stages)
    assert unfinished() == []
    assert "program.cpp" in (builds_folder() / "logs" / f"{build.folder.name}.log").read_text()

    second_stages = Stages()
    assert install(InstallOptions("cpu", sdist=sdist), second_stages) == build
    assert second_stages == []

    monkeypatch.setenv("PATH", os.defpath)
    assert search().find().path == build.binary()
    assert search().find().found_in == "bundled"

    forced = Stages()
    rebuilt = install(InstallOptions("cpu", sdist=sdist, force=True), forced)
    assert rebuilt.folder == build.folder
    assert any(stage.startswith("compiling") for stage in forced)
    assert installed_builds() == [rebuilt]


def test_other_flags_are_another_build(sdist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = install(InstallOptions("cpu", sdist=sdist), Stages())
    monkeypatch.setenv("CMAKE_ARGS", "-DCMAKE_CXX_FLAGS=-O1")
    tuned = install(InstallOptions("cpu", sdist=sdist), Stages())
    assert plain.folder != tuned.folder
    assert "-DCMAKE_CXX_FLAGS=-O1" in tuned.flags
    assert {build.folder for build in installed_builds()} == {plain.folder, tuned.folder}


@pytest.mark.parametrize(("backend", "flag"), [("vulkan", "-DGGML_VULKAN=ON"), ("rocm", "-DGGML_HIP=ON")])
def test_a_backend_is_a_build_of_its_own(sdist: Path, backend: Backend, flag: str) -> None:
    build = install(InstallOptions(backend, sdist=sdist), Stages())
    assert flag in build.flags
    assert build.backend == backend


def test_sycl_needs_intels_compiler(sdist: Path) -> None:
    with pytest.raises(EngineError) as caught:
        install(InstallOptions("sycl", sdist=sdist), Stages())
    assert "oneAPI" in (caught.value.fix or "")


def test_a_build_with_fewer_programs_is_made_anew(sdist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        for module in ("installation", "compile"):
            older.setattr(f"benchctl.engines.llama_cpp.{module}.TARGETS", ("llama-server", "llama-quantize"))
        before = install(InstallOptions("cpu", sdist=sdist), Stages())
    after = install(InstallOptions("cpu", sdist=sdist), Stages())
    assert after.folder != before.folder
    assert after.binary("llama-perplexity").is_file()
    assert search().find().path == after.binary()  # the newer one, though both are there


def test_build_of_another_machine_or_schema_is_not_used(sdist: Path) -> None:
    build = install(InstallOptions("cpu", sdist=sdist), Stages())
    facts = json.loads((build.folder / "build.json").read_text())
    for change in ({"host": {**facts["host"], "cpu": "Another [00000000]"}}, {"schema": 99}, {"flags": None}):
        (build.folder / "build.json").write_text(json.dumps({**facts, **change}))
        assert installed_builds() == []
    (build.folder / "build.json").write_text(json.dumps(facts))
    build.binary().unlink()
    assert Build.read(build.folder) is None


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a processor with AMX, whose code crashes in a build with -DFAKE_CRASHES=ON."""
    monkeypatch.setattr("benchctl.engines.llama_cpp.compile.uses_amx", lambda cxx: True)
    monkeypatch.setattr("benchctl.engines.llama_cpp.compile.breaks_amx", lambda cxx: False)
    monkeypatch.setattr("benchctl.engines.llama_cpp.toolchain.NO_AMX", "-DWITHOUT_THE_FEATURE")


@pytest.mark.usefixtures("amx")
def test_a_build_that_crashes_on_quantized_models_is_made_again_without_amx(
    sdist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = Stages()
    monkeypatch.setenv("CMAKE_ARGS", "-DFAKE_CRASHES=ON '-DCMAKE_CXX_FLAGS=-O0 -g'")
    crashing = InstallOptions("cpu", sdist=sdist)
    build = install(crashing, stages)
    assert build.left_out == ("AMX",)
    assert "-DCMAKE_CXX_FLAGS=-O0 -g -DWITHOUT_THE_FEATURE" in build.flags
    assert "crashed with quantized models; building again without AMX" in stages
    assert try_quantized(build.binary(), Stages().append) == {}
    log = (builds_folder() / "logs" / f"{build.folder.name}.log").read_text()
    assert re.search("q4_0 alone: .*SIGSEGV", log)

    second_stages = Stages()
    assert install(crashing, second_stages) == build
    assert second_stages == []
    monkeypatch.setenv("PATH", os.defpath)
    assert LlamaCppEngine(LlamaCppSpec()).probe().details["left_out"] == ["AMX"]


@pytest.mark.usefixtures("amx")
def test_what_the_compiler_breaks_is_left_out_of_the_first_build(sdist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchctl.engines.llama_cpp.compile.breaks_amx", lambda cxx: True)
    monkeypatch.setenv("CMAKE_ARGS", "-DFAKE_CRASHES=ON")
    stages = Stages()
    assert install(InstallOptions("cpu", sdist=sdist), stages).left_out == ("AMX",)
    assert stages.count("configuring") == 1 and "leaving AMX out, since this compiler breaks code for it" in stages


def test_a_build_that_does_not_crash_leaves_nothing_out(sdist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = install(InstallOptions("cpu", sdist=sdist), Stages())
    assert build.left_out == ()
    monkeypatch.setenv("PATH", os.defpath)
    assert LlamaCppEngine(LlamaCppSpec()).probe().details["left_out"] == []


def test_a_build_that_crashes_without_amx_too_is_refused(sdist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchctl.engines.llama_cpp.compile.uses_amx", lambda cxx: True)
    monkeypatch.setattr("benchctl.engines.llama_cpp.compile.breaks_amx", lambda cxx: False)
    monkeypatch.setenv("CMAKE_ARGS", "-DFAKE_CRASHES=ON")
    with pytest.raises(EngineError, match="also without AMX") as caught:
        install(InstallOptions("cpu", sdist=sdist), Stages())
    assert len(caught.value.log_tail) == 8  # four quantizations, alone and with a draft
    assert installed_builds() == []


def test_compile_error_shows_the_compilers_words(sdist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMAKE_ARGS", "-DFAKE_BROKEN=ON")
    with pytest.raises(EngineError, match="did not compile") as caught:
        install(InstallOptions("cpu", sdist=sdist), Stages())
    assert any("this_is_not_declared" in line for line in caught.value.log_tail)
    log = Path((caught.value.fix or "").rpartition(": ")[2])
    assert "this_is_not_declared" in log.read_text()
    assert installed_builds() == []
    assert unfinished() == []


def test_configure_error_is_reported(sdist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMAKE_ARGS", "-DCMAKE_CXX_COMPILER=/no/such/compiler")
    with pytest.raises(EngineError, match="CMake could not configure") as caught:
        install(InstallOptions("cpu", sdist=sdist), Stages())
    assert any("/no/such/compiler" in line for line in caught.value.log_tail)


def test_no_compiler(sdist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EngineError, match=r"tried no-such-compiler") as caught:
        install(InstallOptions("cpu", sdist=sdist), Stages())
    assert "install" in (caught.value.fix or "")


def test_no_cmake(sdist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="CMake is not installed") as caught:
        install(InstallOptions("cpu", sdist=sdist), Stages())
    assert "ninja" in (caught.value.fix or "")


def test_no_nvcc(sdist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists():
        monkeypatch.setattr("benchctl.engines.llama_cpp.toolchain.nvcc_candidates", list)
    for name in ("CUDACXX", "CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EngineError, match="CUDA compiler"):
        install(InstallOptions("cuda", sdist=sdist), Stages())


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CUDA toolkit of a compiler that prints its version, on a machine without a driver or a card."""
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\necho Build cuda_13.0\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr("benchctl.engines.llama_cpp.toolchain.nvcc_candidates", lambda: [str(nvcc)])
    monkeypatch.setattr("benchctl.machine.nvidia.nvml", lambda: None)
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    return nvcc.parents[1]


@pytest.mark.skipif(sys.platform != "linux", reason="CUDA is Linux's here")
@pytest.mark.parametrize("has_stub", [True, False])
def test_a_build_for_cuda_ends_where_no_driver_is(
    sdist: Path, toolkit: Path, has_stub: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an image the build ended with: libcuda.so.1: cannot open shared object file."""
    driver = toolkit / "lib64" / "stubs" / "libcuda.so"
    driver.parent.mkdir(parents=True)
    source = toolkit / "driver.c"
    source.write_text("int cuInit(unsigned flags) { return 34; }\n")
    argv = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source), "-o", str(driver)]
    subprocess.run(argv, check=True)
    if not has_stub:
        driver = driver.rename(toolkit / "libelsewhere.so")
    monkeypatch.setenv("CMAKE_ARGS", f"-DFAKE_DRIVER={driver}")
    stages = Stages()
    build = install(InstallOptions("cuda", sdist=sdist, arch="90,120", jobs=2), stages)
    assert "-DCMAKE_CUDA_ARCHITECTURES=90;120" in build.flags
    assert stages[0] == "for CUDA 90, 120: about 2 h 0 min with 2 jobs."
    ending = "Tried without a device: this machine has no NVIDIA driver."
    untried = "It was not tried: this machine has no NVIDIA driver, and the toolkit no stub of it."
    assert build.version_output.endswith(ending if has_stub else untried)
    assert any("trying it with" in stage for stage in stages) == has_stub


def test_the_cards_that_a_build_is_for(sdist: Path, toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchctl.machine.nvidia.nvidia_rows", lambda query: [["8.9"], ["12.0"], ["8.9"]])
    assert "-DCMAKE_CUDA_ARCHITECTURES=89;120" in install(InstallOptions("cuda", sdist=sdist), Stages()).flags
    for options, message in (
        (InstallOptions("cpu", arch="90", sdist=sdist), "Only a build for CUDA"),
        (InstallOptions("cuda", arch="--x", sdist=sdist), "Expected card architectures"),
    ):
        with pytest.raises(UsageError, match=message):
            install(options, Stages())


def test_interrupt_leaves_no_compiler_and_what_was_compiled(sdist: Path) -> None:
    argv = [sys.executable, "-c", INSTALL, str(sdist), "-DFAKE_SLOW=86399"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        compiler = _wait_for_child(process.pid, "sleep")
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) != 0
    finally:
        process.kill()
        _, error_text = process.communicate()
    assert b"What was compiled is kept: the next build goes on there." in error_text
    _, alive = psutil.wait_procs([compiler], timeout=LIMIT_S)
    assert alive == []
    assert installed_builds() == []
    (kept,) = unfinished()
    assert (kept / "build" / "build.ninja").is_file(), "the next installation goes on there"
    build = install(InstallOptions("cpu", sdist=sdist), Stages())  # of other flags
    assert build.binary().is_file() and unfinished() == []


def test_killed_installation_is_cleared_away_by_the_next(sdist: Path) -> None:
    leftover = builds_folder() / ".building-abcd"
    leftover.mkdir(parents=True)
    (leftover / "half").write_text("of a build")
    install(InstallOptions("cpu", sdist=sdist), Stages())
    assert unfinished() == []


def test_two_at_once_build_once(sdist: Path) -> None:
    argv = [sys.executable, "-c", INSTALL, str(sdist), "-DFAKE_SLOW=2"]
    pair = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    output = [process.communicate()[0].splitlines() for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    assert output[0][-1] == output[1][-1]
    assert sorted("compiling" in lines for lines in output) == [False, True]
    assert any("waiting for it" in line for line in output[0] + output[1])


def test_full_disk_is_reported_before_anything_is_built(sdist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage("/"))(10**12, 10**12 - 10**8, 10**8)
    monkeypatch.setattr("benchctl.engines.llama_cpp.installation.shutil.disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match=r"needs 0\.7 GB .* there are 0\.1 GB"):
        install(InstallOptions("cpu", sdist=sdist), Stages())


def test_unwritable_cache(sdist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(StorageError) as caught:
        install(InstallOptions("cpu", sdist=sdist), Stages())
    assert "BENCHCTL_CACHE" in (caught.value.fix or "")


def test_metal_elsewhere_than_on_macos(sdist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(UsageError, match="macOS only"):
        install(InstallOptions("metal", sdist=sdist), Stages())


def test_version_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is no version"):
        install(InstallOptions("cpu", version="../../etc"), Stages())


def test_version_and_file_must_agree(sdist: Path) -> None:
    with pytest.raises(UsageError, match=r"not 0\.0\.2"):
        install(InstallOptions("cpu", sdist=sdist, version="0.0.2"), Stages())


def _wait_for_child(pid: int, name: str) -> psutil.Process:
    def of_that_name() -> list[psutil.Process]:
        children = psutil.Process(pid).children(recursive=True)
        with suppress(psutil.NoSuchProcess):  # most end at once
            return [child for child in children if child.name() == name]
        return []

    return wait_for(of_that_name, name)[0]
