"""A recipe's `source`, resolved to files on this machine: checked, hashed and, where asked, quantized."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from pathlib import Path

from benchctl.errors import UsageError
from benchctl.models.convert import converted, is_safetensors_folder
from benchctl.models.gguf_header import read_header
from benchctl.models.hashes import Notice, file_sha256
from benchctl.models.hub import OfflineError, conversion, fetch, fetch_folder
from benchctl.models.huggingface.folder import ORIGIN, huggingface_folder
from benchctl.models.local_files import find_local
from benchctl.models.program import Program
from benchctl.models.quantize import quantized
from benchctl.models.resolved import ModelFile, ResolvedModel, ResolvedPair
from benchctl.models.shards import all_shards
from benchctl.recipes.adapters import ModelFormat
from benchctl.recipes.problems import did_you_mean
from benchctl.recipes.schema import ModelPair, ModelSpec
from benchctl.recipes.source import (
    BundledSource,
    HubSource,
    PathSource,
    ServedSource,
    Source,
    bundled_folder,
    parse_source,
)
from benchctl.text import one_line

FindTool = Callable[[str], Program]
"""Finds a program of the engine by name; called only when a recipe needs it."""


def resolve_pair(
    models: ModelPair,
    *,
    recipe_folder: Path,
    models_dir: Path | None = None,
    on_progress: Notice | None = None,
    find_tool: FindTool | None = None,
    form: ModelFormat = "gguf",
) -> ResolvedPair:
    """Find, check and hash the files of both models, downloading and quantizing where the recipe asks for it.

    `form` is what the engine is to be given. `models_dir` is searched before the hub. `on_progress` is told in a few
    words what takes long. Raises UsageError for a file that is missing, truncated, of another format or of a newer
    version, and for a source that cannot be had.
    """

    def resolve(role: str, spec: ModelSpec) -> ResolvedModel:
        unquantized = None
        try:
            if form == "served":
                return ResolvedModel(spec.source, ())
            if form == "huggingface":
                folder = locate_folder(
                    spec.source, recipe_folder=recipe_folder, models_dir=models_dir, on_progress=on_progress
                )
                files = tuple(file for file in sorted(folder.iterdir()) if file.is_file() and file.name != ORIGIN)
                return ResolvedModel(
                    spec.source, tuple(_model_file(file, on_progress) for file in files), folder=folder
                )
            files = locate_model(
                spec.source,
                recipe_folder=recipe_folder,
                models_dir=models_dir,
                on_progress=on_progress,
                find_tool=find_tool,
            )
            if spec.quantize is not None:
                if find_tool is None:
                    raise UsageError(
                        "this engine cannot quantize", fix="Leave `quantize` out and name a quantized file."
                    )
                unquantized = files[0]
                files = (quantized(files, spec.quantize, find_tool("llama-quantize"), notice=on_progress),)
        except UsageError as error:
            where = f"models.{role} ({one_line(spec.source, 120)})"
            raise UsageError(error.what, where=": ".join(filter(None, (where, error.where))), fix=error.fix) from None
        return ResolvedModel(spec.source, tuple(_model_file(file, on_progress) for file in files), unquantized)

    target = resolve("target", models.target)
    return ResolvedPair(target, None if models.draft is None else resolve("draft", models.draft))


def locate_model(
    source: str,
    *,
    recipe_folder: Path,
    models_dir: Path | None = None,
    on_progress: Notice | None = None,
    find_tool: FindTool | None = None,
) -> tuple[Path, ...]:
    """Return the GGUF files of a source, all shards, first one first, each with a sound header; errors as above.

    A folder of safetensors is converted first, where `find_tool` can find the converter.
    """
    first = _locate(source, recipe_folder, models_dir, on_progress)
    if is_safetensors_folder(first) and find_tool is not None:
        first = converted(first, find_tool("convert_hf_to_gguf.py"), notice=on_progress)
    elif is_safetensors_folder(first):
        fix = "Make it one first: benchctl quantize FOLDER --type bf16 (or another type)."
        raise UsageError("this is a folder of safetensors, not a GGUF file", where=one_line(str(first)), fix=fix)
    files = all_shards(first)
    for file in files:
        read_header(file)
    return files


def locate_folder(
    source: str, *, recipe_folder: Path, models_dir: Path | None = None, on_progress: Notice | None = None
) -> Path:
    """Return the Hugging Face folder of a source, derived from its GGUF file where it is one. Raises as above."""
    parsed = _parsed(source)
    if isinstance(parsed, HubSource):
        return _folder_from_hub(parsed, models_dir, on_progress)
    first = _locate(source, recipe_folder, models_dir, on_progress)
    if first.is_dir():
        if not is_safetensors_folder(first):
            fix = "It needs a config.json and *.safetensors, as a repository of the Hugging Face hub has them."
            raise UsageError("this folder holds no Hugging Face model", where=one_line(str(first)), fix=fix)
        return first
    if not first.name.lower().endswith(".gguf"):
        fix = "Name a folder with config.json and *.safetensors, or a GGUF file that one can be derived from."
        raise UsageError("this engine reads Hugging Face folders", where=one_line(str(first)), fix=fix)
    return huggingface_folder(first, notice=on_progress)


def _folder_from_hub(source: HubSource, models_dir: Path | None, notice: Notice | None) -> Path:
    if source.file is not None:
        fix = f"Write hf:{source.repo}, without a file."
        raise UsageError("this engine reads whole repositories of safetensors", fix=fix)
    organisation, repository = source.repo.split("/")
    if models_dir is not None:
        folder = models_dir.expanduser().absolute()
        for place in (folder / organisation / repository, folder / repository):
            if is_safetensors_folder(place):
                return place
    try:
        return fetch_folder(source, notice)
    except OfflineError as error:
        fix = f"Connect, or put the repository's files into FOLDER/{repository} and name it: --models-dir FOLDER"
        raise UsageError(f"the model is not on this machine: {error}", fix=fix) from None


def _parsed(text: str) -> Source:
    try:
        return parse_source(text)
    except ValueError as error:
        raise UsageError(f"{error}") from None


def _model_file(path: Path, notice: Notice | None) -> ModelFile:
    return ModelFile(path, path.stat().st_size, file_sha256(path, notice))


def _locate(text: str, recipe_folder: Path, models_dir: Path | None, notice: Notice | None) -> Path:
    """Return the first file of a source, absolute."""
    match source := _parsed(text):
        case PathSource():
            return _from_path(source, recipe_folder, models_dir)
        case BundledSource():
            return _from_bundle(source, notice)
        case HubSource():
            return _from_hub(source, recipe_folder, models_dir, notice)
        case ServedSource():
            raise UsageError("only an endpoint knows this model", fix="Name a model's files.")


def _from_path(source: PathSource, recipe_folder: Path, models_dir: Path | None) -> Path:
    path = Path(source.path).expanduser()
    tried = [path] if path.is_absolute() else [recipe_folder / path, Path.cwd() / path]
    if models_dir is not None:
        tried.append(models_dir.expanduser() / path.name)
    for candidate in dict.fromkeys(place.absolute() for place in tried):
        if candidate.exists():
            return _first_shard(candidate)
    places = " and ".join(str(place) for place in dict.fromkeys(one_line(str(p.absolute())) for p in tried))
    fix = f"Looked for {places}."
    if not path.is_absolute() and len(path.parts) == 2 and path.suffix == "":
        fix += f" For a repository of the Hugging Face hub write hf:{one_line(source.path)}."
    raise UsageError("there is no such model file", fix=fix)


def _first_shard(path: Path) -> Path:
    return path if path.is_dir() else all_shards(path)[0]


def _from_bundle(source: BundledSource, notice: Notice | None) -> Path:
    folder = bundled_folder()
    try:
        index = json.loads((folder / "index.json").read_text("utf-8"))
    except FileNotFoundError:
        fix = "Install a released benchctl, or check out the repository with its model files."
        raise UsageError("this installation of benchctl carries no models", fix=fix) from None
    entry = index.get(source.name)
    if entry is None:
        fix = did_you_mean(source.name, index).strip() or f"Known: {', '.join(index)}."
        raise UsageError(f"benchctl ships no model called '{one_line(source.name, 60)}'", fix=fix)
    path: Path = folder / entry["file"]
    if not path.is_file():
        raise UsageError(f"the bundled file {path.name} is missing", fix="Install benchctl again.")
    if not hmac.compare_digest(file_sha256(path, notice), entry["sha256"]):
        raise UsageError(
            f"the bundled file {path.name} is not the one that benchctl ships", fix="Install benchctl again."
        )
    return path


def _from_hub(source: HubSource, recipe_folder: Path, models_dir: Path | None, notice: Notice | None) -> Path:
    if models_dir is not None:
        if not models_dir.expanduser().is_dir():
            raise UsageError("this folder does not exist", where=f"--models-dir {one_line(str(models_dir))}")
        if found := find_local(source, models_dir.expanduser().absolute()):
            return _first_shard(found)
    try:
        return fetch(source, notice)
    except OfflineError as error:
        for folder in (recipe_folder / "models", recipe_folder, Path.cwd() / "models", Path.cwd()):
            if found := find_local(source, folder.absolute()):
                return _first_shard(found)
        wanted = source.file.rsplit("/", 1)[-1] if source.file else f"{source.repo.split('/')[-1]}.gguf"
        fix = f"Connect, or put {wanted} into a folder and name it: --models-dir FOLDER"
        if source.file is None and "gguf" not in source.repo.lower():
            fix += f"\nA repository of safetensors has no GGUF file. {conversion(source.repo)}"
        raise UsageError(f"the model is not on this machine: {error}", fix=fix) from None
