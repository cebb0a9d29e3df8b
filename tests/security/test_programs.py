"""Programs: what a recipe or a manifest names runs only where the user named it, and hashes are compared before."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchctl.data.store import open_run
from benchctl.errors import UsageError
from benchctl.lossless.score.relaunch import RelaunchError, relaunch
from benchctl.measurement.prepare import prepare
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.resume import prepare_again
from benchctl.measurement.run import start_run
from benchctl.permissions import changing, permit_program
from benchctl.recipes.load import load_recipe
from tests.benchctl_process import benchctl
from tests.security.conftest import marking_program

ARMS = "arms: [{name: baseline}, {name: other, speculation: {type: ngram-mod}}]\n"
DRAFTS = """  draft: {source: 'bundled:tiny-hybrid-draft'}
arms: [{name: baseline}, {name: d, speculation: {type: draft-simple, max: 4}}]
"""


def written(binary: str | None, kind: str = "llama.cpp", arms: str = ARMS) -> Path:
    named = "" if binary is None else f", binary: '{binary}'"
    file = Path.cwd() / "r.yaml"
    file.write_text(
        f"name: r\nengine: {{kind: {kind}{named}}}\nprompts: {{suite: tiny.json, limit: 1}}\nblocks: 1\n"
        "preflight: 'off'\nsampling: {max_tokens: 4}\n"
        f"models:\n  target: {{source: 'bundled:tiny-sequential'}}\n{arms}"
    )
    return file


@pytest.mark.parametrize(
    "words",
    [("run", "r.yaml", "-q"), ("run", "r.yaml", "--dry-run"), ("run", "r.yaml", "--json"), ("breakeven", "r.yaml"),
     ("tune", "r.yaml"), ("diagnose", "r.yaml"), ("recipes", "check", "r.yaml"),
     ("isolate", "r.yaml", "--type", "q8_0"), ("verify-sampling", "r.yaml")],
    ids=" ".join,
)  # fmt: skip
def test_a_recipes_own_program_does_not_run(home: Path, words: tuple[str, ...]) -> None:
    mark = marking_program(Path.cwd() / "server")
    written("./server", arms=DRAFTS if words[0] == "breakeven" else ARMS)
    done = benchctl(*words)
    assert done.returncode == 2, done.stderr
    assert not mark.exists()
    assert str(Path.cwd() / "server") in done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["llama.cpp", "vllm", "sglang", "transformers"])
def test_of_no_engine(home: Path, kind: str) -> None:
    mark = marking_program(Path.cwd() / "python")
    file = written("./python", kind, "arms: [{name: baseline}]\n")
    with pytest.raises(UsageError, match="you have not named"):
        prepare(load_recipe(file), recipe_folder=file.parent)
    assert not mark.exists()


@pytest.mark.parametrize("entry", [".", "", "{folder}"])
def test_a_name_is_not_found_through_the_strangers_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    mark = marking_program(Path.cwd() / "my-server")
    monkeypatch.setenv("PATH", f"{entry.format(folder=Path.cwd())}:/usr/bin:/bin")
    file = written("my-server")
    with pytest.raises(UsageError):
        prepare(load_recipe(file), recipe_folder=file.parent)
    assert not mark.exists()


def test_links_and_dots_do_not_make_a_known_path(home: Path) -> None:
    server = home / "bin" / "server"
    marking_program(server)
    with changing() as trusted:
        trusted.add_program(server)
    folder = Path.cwd()
    deep = folder / "a" / "b"
    deep.mkdir(parents=True)
    marking_program(folder / "a" / "bin" / "server")
    (home / "way").symlink_to(deep)
    permit_program(server, "recipe", folder)
    with pytest.raises(UsageError):
        permit_program(home / "way" / ".." / "bin" / "server", "recipe", folder)


def test_the_option_outranks_the_recipe_and_its_path_is_kept(home: Path, llama_server: Path) -> None:
    mark = marking_program(Path.cwd() / "server")
    copied = home / "mine" / "bin" / llama_server.name
    shutil.copytree(llama_server.parent, copied.parent)
    written("./server")
    assert benchctl("run", "r.yaml", "--dry-run", "-q", "--engine-binary", copied).returncode == 0
    assert not mark.exists()
    written(str(copied))
    done = benchctl("run", "r.yaml", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert f"names the program that is run: {copied}" in done.stderr
    json.loads(done.stdout)
    quiet = benchctl("run", "r.yaml", "--dry-run", "-q")
    assert f"names the program that is run: {copied}" in quiet.stderr
    with copied.open("ab") as file:  # built anew
        file.write(b"\0")
    assert benchctl("run", "r.yaml", "--dry-run").returncode == 0


def test_no_backend_of_the_working_folder_is_loaded(home: Path, llama_server: Path) -> None:
    copied = home / "mine" / "bin" / llama_server.name
    shutil.copytree(llama_server.parent, copied.parent)
    written("llama-server")
    (Path.cwd() / "libggml-cpu-evil.so").write_bytes(b"")
    refused = benchctl("run", "r.yaml", "--dry-run", "--engine-binary", copied)
    assert refused.returncode == 2
    assert "libggml-cpu-evil.so" in refused.stderr
    (Path.cwd() / "libggml-cpu-evil.so").unlink()
    assert benchctl("run", "r.yaml", "--dry-run", "--engine-binary", copied).returncode == 0


def test_listing_engines_runs_none_that_would_load_a_backend_of_the_working_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = marking_program(home / "bin" / "llama-server")
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/usr/bin:/bin")
    (Path.cwd() / "libggml-cpu-evil.so").write_bytes(b"")
    listed = benchctl("engines", "list", "--json")
    assert "libggml-cpu-evil.so" in listed.stdout + listed.stderr
    benchctl("engines", "doctor")
    assert not mark.exists()


def wrapper(folder: Path, server: Path) -> None:
    """Put a script into a folder that runs what lies beside it."""
    shutil.copy(server, folder / "llama-server.bin")
    (folder / "llama-server").write_text('#!/bin/sh\nexec "$(dirname "$0")/llama-server.bin" "$@"\n')
    (folder / "llama-server").chmod(0o755)


def dynamic(folder: Path, server: Path) -> None:
    """Put a program into a folder that loads a library beside it, as llama.cpp's archives have them."""
    compiled("int ggml_base;", folder / "libggml-base.so", "-shared", "-fPIC")
    compiled(
        "#include <unistd.h>\nextern int ggml_base; int main(int count, char **words) "
        f'{{return ggml_base + execv("{server}", words);}}',
        folder / "llama-server",
        *(f"-L{folder}", "-lggml-base", "-Wl,-rpath,$ORIGIN"),
    )


def compiled(source: str, into: Path, *flags: str) -> None:
    subprocess.run(["cc", "-x", "c", "-", "-o", str(into), *flags], input=source.encode(), check=True)


@pytest.mark.parametrize("make", [wrapper, dynamic])
def test_a_copy_of_a_named_program_runs_nothing_below_a_recipes_folder(
    home: Path, llama_server: Path, make: Callable[[Path, Path], None]
) -> None:
    """The same files with the same hashes: a wrapper runs what lies beside it, and glibc looks for libraries below
    `glibc-hwcaps` first."""
    mine, theirs, mark = home / "mine", Path.cwd() / "bin", home / "mark"
    mine.mkdir()
    make(mine, llama_server)
    written(None)
    dry = ("run", "r.yaml", "--dry-run", "-q")
    named = benchctl(*dry, "--engine-binary", mine / "llama-server")
    assert named.returncode == 0, named.stderr
    shutil.copytree(mine, theirs)
    if make is wrapper:
        (theirs / "llama-server.bin").write_text(f"#!/bin/sh\necho ran >> '{mark}'\nexit 1\n")
    else:
        below = theirs / "glibc-hwcaps" / "x86-64-v2"
        below.mkdir(parents=True)
        evil = f'FILE *mark = fopen("{mark}", "a"); if (mark) fclose(mark);'
        evil = f"#include <stdio.h>\nint ggml_base; __attribute__((constructor)) static void run(void) {{{evil}}}"
        compiled(evil, below / "libggml-base.so", "-shared", "-fPIC")
    written("./bin/llama-server")
    refused = benchctl(*dry)
    assert not mark.exists()
    assert (refused.returncode, "you have not named" in refused.stderr) == (2, True), refused.stderr
    assert benchctl("recipes", "check", "r.yaml").returncode == 2
    assert not mark.exists()
    benchctl(*dry, "--trust-recipe")
    assert mark.exists(), "it is an attack"


def test_a_named_program_below_a_recipes_folder_is_asked_for_again(home: Path, llama_server: Path) -> None:
    shutil.copytree(llama_server.parent, "bin")
    written("./bin/llama-server")
    dry = ("run", "r.yaml", "--dry-run", "-q")
    for typed in (("--engine-binary", "./bin/llama-server"), ("--set", "engine.binary=./bin/llama-server")):
        assert benchctl(*dry, *typed).returncode == 0
        assert benchctl(*dry).returncode == 2
    neighbour = home / "beside"
    neighbour.mkdir()
    shutil.copy(written(str(Path.cwd() / "bin" / "llama-server")), neighbour)
    assert benchctl("run", neighbour / "r.yaml", "--dry-run", "-q").returncode == 0, "named, and not of that folder"


def test_verify_runs_nothing_of_a_strangers_folder_nor_what_has_another_hash(home: Path, llama_server: Path) -> None:
    file = written(None)
    prepared = prepare(load_recipe(file), recipe_folder=file.parent, binary=str(llama_server))
    folder = start_run(prepared, Path("out"), RunProgress(), ["benchctl"])
    relaunch(open_run(folder), "baseline")  # its own run is verified without a question
    stored = folder / "manifest.json"
    manifest = json.loads(stored.read_text())
    mark = marking_program(folder / "llama-server")
    for arm in manifest["arms"]:
        arm["argv"][0] = str((folder / "llama-server").absolute())
    stored.write_text(json.dumps(manifest))
    with pytest.raises(RelaunchError, match="hash differs"):
        relaunch(open_run(folder), "baseline", trusted=True)
    assert not mark.exists()
    manifest["engine"]["details"] |= {"sha256": prepared_hash(folder / "llama-server"), "siblings": {}}
    stored.write_text(json.dumps(manifest))
    with pytest.raises(RelaunchError, match="you have not named"):
        relaunch(open_run(folder), "baseline")
    done = benchctl("verify-lossless", folder, "--json")
    assert not mark.exists()
    assert "Traceback" not in done.stderr


def prepared_hash(file: Path) -> str:
    from benchctl.models.files import file_sha256

    return file_sha256(file)


def test_a_resumed_run_compares_the_hash_before_anything_runs(home: Path, llama_server: Path) -> None:
    copied = home / "mine" / "bin" / llama_server.name
    shutil.copytree(llama_server.parent, copied.parent)
    file = written(None)
    prepared = prepare(load_recipe(file), recipe_folder=file.parent, binary=str(copied))
    run = open_run(start_run(prepared, Path("out"), RunProgress(), ["benchctl"]))
    prepare_again(run, binary=str(copied))
    mark = marking_program(copied)
    for trusted in (False, True):
        with pytest.raises(UsageError, match="hash differs"):
            prepare_again(run, binary=str(copied), trusted=trusted)
    assert not mark.exists()


def test_a_manifest_whose_recipe_was_changed_does_not_resume(home: Path, llama_server: Path) -> None:
    file = written(None)
    prepared = prepare(load_recipe(file), recipe_folder=file.parent, binary=str(llama_server))
    folder = start_run(prepared, Path("out"), RunProgress(), ["benchctl"])
    stored = folder / "manifest.json"
    manifest = json.loads(stored.read_text())
    manifest["recipe"]["arms"][1]["args"] = ["--tools", "all"]
    stored.write_text(json.dumps(manifest))
    for words in (("run", "--resume"), ("run", "--dry-run", "--resume")):
        done = benchctl(*words, folder, "--engine-binary", llama_server, "--trust-recipe")
        assert done.returncode == 2
        assert "was changed since" in done.stderr


@pytest.mark.parametrize("spelled", ["deploy", "{path}"])
def test_a_program_on_path_that_is_no_engines_does_not_run(
    home: Path, monkeypatch: pytest.MonkeyPatch, spelled: str
) -> None:
    program = home / "bin" / "deploy"
    mark = marking_program(program)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    file = written(spelled.format(path=program))
    with pytest.raises(UsageError, match="you have not named"):
        prepare(load_recipe(file), recipe_folder=file.parent)
    assert benchctl("recipes", "check", "r.yaml").returncode == 2
    assert not mark.exists()


def test_an_engines_program_on_path_runs_by_its_name(
    home: Path, llama_server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(llama_server.parent, home / "bin")
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/usr/bin:/bin")
    file = written("llama-server")
    assert prepare(load_recipe(file), recipe_folder=file.parent).of_baseline.capabilities.binary is not None
