"""A recipe's `source`, resolved to files on this machine: checked, hashed and, where requested, quantized."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchctl.errors import UsageError
from benchctl.models.convert import converted, is_safetensors_folder, needs_target
from benchctl.models.files import ORIGIN, ModelFile, Notice, ResolvedModel, ResolvedPair, file_sha256
from benchctl.models.gguf_facts import all_shards, shard_names
from benchctl.models.gguf_header import read_header
from benchctl.models.hub import OfflineError, fetch, fetch_folder
from benchctl.models.padding import padded_model
from benchctl.models.quantize import Program, quantized
from benchctl.recipes.adapters import ModelFormat
from benchctl.recipes.problems import did_you_mean
from benchctl.recipes.schema import ModelPair, ModelSpec
from benchctl.recipes.source import (
    PADDED,
    BundledSource,
    HubSource,
    PathSource,
    ServedSource,
    Source,
    bundled_folder,
    parse_source,
)
from benchctl.text import one_line


@dataclass(frozen=True)
class BundledModel:
    """An entry of `index.json`."""

    name: str
    path: Path
    role: str
    """What it is for: `target`, `draft`, or the draft of a kind of speculation."""
    architecture: str
    """`general.architecture` of the file."""
    parameters: int
    size: int
    """Bytes."""
    sha256: str
    licence: str

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as plain JSON data."""
        return {**asdict(self), "path": str(self.path)}


def bundled_models() -> tuple[BundledModel, ...]:
    """Return the bundled models in the index's order; empty when this installation has none."""
    folder = bundled_folder()
    try:
        index: dict[str, dict[str, Any]] = json.loads((folder / "index.json").read_text("utf-8"))
    except FileNotFoundError:
        return ()
    return tuple(
        BundledModel(
            name=name,
            path=folder / entry["file"],
            role=entry["role"],
            architecture=entry["architecture"],
            parameters=entry["parameters"],
            size=entry["bytes"],
            sha256=entry["sha256"],
            licence=entry["licence"],
        )
        for name, entry in index.items()
    )


FindTool = Callable[[str], Program]
"""Finds a program of the engine by name; called only when a recipe needs it."""


@dataclass(frozen=True)
class _Places:
    """Where models are looked for, and what reports what takes long."""

    recipe_folder: Path
    models_dir: Path | None = None
    notice: Notice | None = None
    find_tool: FindTool | None = None

    def first(self, text: str, *, safetensors: bool = False) -> Path:
        """Return a source's first file, or its folder (of a repository of the hub with `safetensors`), absolute."""
        match source := _parsed(text):
            case PathSource():
                return self._of_path(source)
            case BundledSource():
                return _from_bundle(source, self.notice)
            case HubSource():
                return self._of_hub(source, safetensors=safetensors)
            case ServedSource():
                raise UsageError("this model is served by an endpoint and has no files", fix="Name a model's files.")

    def files(self, source: str, drafts_for: str | None = None) -> tuple[Path, ...]:
        """See `locate_model`.

        A draft head without a tokenizer (EAGLE-3, DFlash, DSpark) is converted with that of `drafts_for`, the target's.
        """
        first = self.first(source, safetensors=self.find_tool is not None)
        if is_safetensors_folder(first):
            if self.find_tool is None:
                fix = "Make it one first: benchctl models quantize FOLDER --type bf16 (or another type)."
                what = "this is a folder of safetensors, not a GGUF file"
                raise UsageError(what, where=one_line(str(first)), fix=fix)
            target = self._target_folder(drafts_for) if needs_target(first) else None
            first = converted(first, self.find_tool("convert_hf_to_gguf.py"), notice=self.notice, target=target)
        files = all_shards(first)
        for file in files:
            read_header(file)
        return files

    def folder(self, source: str) -> Path:
        """See `locate_folder`."""
        parsed = _parsed(source)
        if isinstance(parsed, HubSource):
            return self._folder_of_hub(parsed)
        first = self.first(source)
        if first.is_dir():
            if not is_safetensors_folder(first):
                fix = "It needs a config.json and *.safetensors, as a repository of the Hugging Face hub has them."
                raise UsageError("this folder has no Hugging Face model", where=one_line(str(first)), fix=fix)
            return first
        if not isinstance(parsed, BundledSource):
            fix = "Name hf:ORG/REPO, or a folder with config.json and *.safetensors."
            raise UsageError("this engine reads Hugging Face folders", where=one_line(str(first)), fix=fix)
        from benchctl.models.huggingface.folder import bundled_config, huggingface_folder

        return huggingface_folder(first, config=bundled_config(parsed.name), notice=self.notice)

    def _target_folder(self, source: str | None) -> Path:
        """Return the safetensors folder of the target that a draft head without a tokenizer is converted with."""
        where = None if source is None else self.first(source, safetensors=True)
        if where is not None and is_safetensors_folder(where):
            return where
        fix = (
            "Name the target by its original weights, too: a folder of safetensors or hf:ORG/REPO, with "
            "`quantize: {type: q8_0}` for a quantized one. Or name a GGUF file of the head."
        )
        raise UsageError("this draft head has no tokenizer, and is converted with its target's", fix=fix)

    def _of_path(self, source: PathSource) -> Path:
        path = Path(source.path).expanduser()
        tried = [path] if path.is_absolute() else [self.recipe_folder / path, Path.cwd() / path]
        if self.models_dir is not None:
            tried.append(self.models_dir.expanduser() / path.name)
        for candidate in dict.fromkeys(place.absolute() for place in tried):
            if candidate.exists():
                return _first_shard(candidate)
        fix = f"Searched: {' and '.join(dict.fromkeys(one_line(str(place.absolute())) for place in tried))}."
        if not path.is_absolute() and len(path.parts) == 2 and path.suffix == "":
            fix += f" For a repository of the Hugging Face hub write hf:{one_line(source.path)}."
        raise UsageError("there is no such model file", fix=fix)

    def _of_hub(self, source: HubSource, *, safetensors: bool) -> Path:
        folders = safetensors and source.file is None

        def below(folder: Path) -> Path | None:
            if found := find_local(source, folder):
                return _first_shard(found)
            return _local_folder(source, folder) if folders else None

        if self.models_dir is not None:
            if not self.models_dir.expanduser().is_dir():
                raise UsageError("this folder does not exist", where=f"--models-dir {one_line(str(self.models_dir))}")
            if found := below(self.models_dir.expanduser().absolute()):
                return found
        try:
            return fetch(source, self.notice, safetensors=folders)
        except OfflineError as error:
            for folder in (self.recipe_folder / "models", self.recipe_folder, Path.cwd() / "models", Path.cwd()):
                if found := below(folder.absolute()):
                    return found
            repository = source.repo.split("/")[-1]
            missing = source.file.rsplit("/", 1)[-1] if source.file else f"{repository}.gguf"
            if folders:
                missing += f" (or the folder {repository} with its safetensors)"
            fix = f"Connect, or put {missing} into a folder and name it: --models-dir FOLDER"
            raise UsageError(f"the model is not on this machine: {error}", fix=fix) from None

    def _folder_of_hub(self, source: HubSource) -> Path:
        if source.file is not None:
            fix = f"Write hf:{source.repo}, without a file."
            raise UsageError("this engine reads whole repositories of safetensors", fix=fix)
        if self.models_dir and (folder := _local_folder(source, self.models_dir.expanduser().absolute())):
            return folder
        try:
            return fetch_folder(source, self.notice)
        except OfflineError as error:
            repository = source.repo.split("/")[-1]
            fix = f"Connect, or put the repository's files into FOLDER/{repository} and name it: --models-dir FOLDER"
            raise UsageError(f"the model is not on this machine: {error}", fix=fix) from None


def resolve_pair(
    models: ModelPair,
    *,
    recipe_folder: Path,
    models_dir: Path | None = None,
    on_progress: Notice | None = None,
    find_tool: FindTool | None = None,
    form: ModelFormat = "gguf",
) -> ResolvedPair:
    """Find, check and hash the files of both models, downloading and quantizing where the recipe needs it.

    `form` is what the engine is to be given. `models_dir` is searched before the hub. `on_progress` is called with a
    few words on what takes long. Raises UsageError for a file that is missing, truncated, of another format or of a
    newer version, and for a source that cannot be fetched.
    """
    places = _Places(recipe_folder, models_dir, on_progress, find_tool)

    def resolve(role: str, spec: ModelSpec) -> ResolvedModel:
        unquantized = None
        try:
            if form == "served":
                return ResolvedModel(spec.source, ())
            if form == "huggingface":
                folder = places.folder(spec.source)
                inside = (file for file in sorted(folder.iterdir()) if file.is_file() and file.name != ORIGIN)
                return ResolvedModel(spec.source, _hashed(inside, on_progress), folder=folder)
            files = places.files(spec.source, models.target.source if role == "draft" else None)
            if spec.quantize is not None:
                if find_tool is None:
                    fix = "Leave `quantize` out and name a quantized file."
                    raise UsageError("this engine cannot quantize", fix=fix)
                unquantized = files[0]
                files = (quantized(files, spec.quantize, find_tool("llama-quantize"), notice=on_progress),)
        except UsageError as error:
            where = ": ".join(filter(None, (f"models.{role} ({one_line(spec.source, 120)})", error.where)))
            raise UsageError(error.what, where=where, fix=error.fix, installs=error.installs) from None
        return ResolvedModel(spec.source, _hashed(files, on_progress), unquantized)

    target = resolve("target", models.target)
    return ResolvedPair(target, None if models.draft is None else resolve("draft", models.draft))


def _hashed(files: Iterable[Path], notice: Notice | None) -> tuple[ModelFile, ...]:
    return tuple(ModelFile(file, file.stat().st_size, file_sha256(file, notice)) for file in files)


def locate_model(
    source: str,
    *,
    recipe_folder: Path,
    models_dir: Path | None = None,
    on_progress: Notice | None = None,
    find_tool: FindTool | None = None,
) -> tuple[Path, ...]:
    """Return the GGUF files of a source, all shards in order, each with a sound header; errors as above.

    A folder or a repository of safetensors is converted first, where `find_tool` can find the converter.
    """
    return _Places(recipe_folder, models_dir, on_progress, find_tool).files(source)


def is_there(source: str, *, recipe_folder: Path) -> None:
    """Raise UsageError where a path or a bundled model is not there; a source of the hub is requested, too."""
    _Places(recipe_folder).first(source, safetensors=True)


def locate_folder(
    source: str, *, recipe_folder: Path, models_dir: Path | None = None, on_progress: Notice | None = None
) -> Path:
    """Return the Hugging Face folder of a source, derived where it is a bundled model. Raises as above."""
    return _Places(recipe_folder, models_dir, on_progress).folder(source)


def _local_folder(source: HubSource, folder: Path) -> Path | None:
    """Return the repository's safetensors below `folder`: ORG/REPO, or REPO."""
    organisation, repository = source.repo.split("/")
    places = (folder / organisation / repository, folder / repository)
    return next((place for place in places if is_safetensors_folder(place)), None)


def _parsed(text: str) -> Source:
    try:
        return parse_source(text)
    except ValueError as error:
        raise UsageError(f"{error}") from None


def _first_shard(path: Path) -> Path:
    return path if path.is_dir() else all_shards(path)[0]


def _from_bundle(source: BundledSource, notice: Notice | None) -> Path:
    known = {model.name: model for model in bundled_models()}
    if not known:
        fix = "Install a released benchctl, or check out the repository with its model files."
        raise UsageError("this installation of benchctl has no bundled models", fix=fix)
    if source.name in PADDED:
        _from_bundle(BundledSource(PADDED[source.name][0]), notice)
        return padded_model(source.name, notice)
    if source.name not in known:
        fix = did_you_mean(source.name, known).strip() or f"Known: {', '.join(known)}."
        raise UsageError(f"benchctl ships no model called '{one_line(source.name, 60)}'", fix=fix)
    path, fix = known[source.name].path, "Install benchctl again."
    if not path.is_file():
        raise UsageError(f"the bundled file {path.name} is missing", fix=fix)
    if not hmac.compare_digest(file_sha256(path, notice), known[source.name].sha256):
        raise UsageError(f"the bundled file {path.name} is not what benchctl ships", fix=fix)
    return path


def find_local(source: HubSource, folder: Path) -> Path | None:
    """Return the file of a hub source below `folder`; None when there is none.

    A named file is searched for as ORG/REPO/FILE, REPO/FILE and FILE. Without a name, the GGUF files in ORG/REPO and
    REPO and those called after the repository serve; several of them raise UsageError.
    """
    organisation, repository = source.repo.split("/")
    places = [folder / organisation / repository, folder / repository, folder]
    if source.file is not None:
        short = source.file.rsplit("/", 1)[-1]
        candidates = [place / name for place in places for name in dict.fromkeys((source.file, short))]
        return next((path for path in candidates if path.is_file()), None)
    for place in places[:2]:
        if found := _one_of(sorted(place.glob("*.gguf")), source):
            return found
    stem = repository.lower().removesuffix("-gguf")
    called = [path for path in sorted(folder.glob("*.gguf")) if _is_called(path.stem.lower(), stem)]
    return _one_of(called, source)


def _is_called(name: str, stem: str) -> bool:
    """`plamo-2-8b-bf16` is called after `plamo-2-8b`, `plamo-2-80b` is not."""
    return name == stem or (name.startswith(stem) and name[len(stem)] in "-._")


def _one_of(files: list[Path], source: HubSource) -> Path | None:
    """Return the only model among `files`; the shards of a model count as a single file."""
    firsts = sorted({file.with_name(shard_names(file.name)[0]) for file in files})
    if len(firsts) > 1:
        listed = ", ".join(one_line(path.name, 80) for path in firsts[:8])
        fix = f"Name one: hf:{source.repo}/{one_line(firsts[0].name, 80)}"
        raise UsageError(f"{len(firsts)} files match: {listed}", where=one_line(str(firsts[0].parent)), fix=fix)
    return firsts[0] if firsts else None
