"""A recipe's `source`, resolved to files on this machine: checked, hashed and, where requested, quantized."""

from __future__ import annotations

import hmac
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchctl.errors import StorageError, UsageError
from benchctl.models.files import ORIGIN, ModelFile, Notice, ResolvedModel, ResolvedPair, file_sha256, made_once
from benchctl.models.folder_facts import folder_facts
from benchctl.models.footprint import kv_cache_bytes, recurrent_state
from benchctl.models.gguf_facts import all_shards, facts_of, shard_names
from benchctl.models.gguf_header import read_header
from benchctl.models.hub import OfflineError, fetch, fetch_folder
from benchctl.models.quantize import Program, code_in, converted, is_safetensors_folder, needs_target, quantized
from benchctl.models.vocabulary import end_tokens
from benchctl.paths import cache_folder
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
    index = bundled_folder() / "index.json"
    entries = json.loads(index.read_text("utf-8")) if index.is_file() else {}
    return tuple(
        BundledModel(name, bundled_folder() / entry.pop("file"), size=entry.pop("bytes"), **entry)
        for name, entry in entries.items()
    )


FindTool = Callable[[str], Program]
"""Finds a program of the engine by name; called only when a recipe needs it."""


@dataclass(frozen=True)
class ModelSearch:
    """Where models are looked for: beside the recipe, in the working directory, in `models_dir`, then on the hub.

    Every method raises UsageError for a source that cannot be fetched, and for a file that is missing, truncated, of
    another format or of a newer version.
    """

    recipe_folder: Path
    models_dir: Path | None = None
    notice: Notice | None = None
    """Is called with a few words on what takes long."""
    find_tool: FindTool | None = None
    may_run_code: bool = False
    """Whether llama.cpp's converter may run Python code that a folder of safetensors brings."""

    def pair(self, models: ModelPair, form: ModelFormat = "gguf") -> ResolvedPair:
        """Return the hashed files of both models in the form that an engine takes, downloaded and quantized."""
        target = self._resolved("target", models, models.target, form)
        draft = None if models.draft is None else self._resolved("draft", models, models.draft, form)
        return ResolvedPair(target, draft)

    def _resolved(self, role: str, models: ModelPair, spec: ModelSpec, form: ModelFormat) -> ResolvedModel:
        unquantized = folder = None
        try:
            if form == "served":
                return ResolvedModel(spec.source, ())
            if form == "huggingface":
                folder = self.folder(spec.source)
                files = tuple(file for file in sorted(folder.iterdir()) if file.is_file() and file.name != ORIGIN)
            else:
                files = self.files(spec.source, models.target.source if role == "draft" else None)
            if spec.quantize is not None and folder is None:
                if self.find_tool is None:
                    fix = "Leave `quantize` out and name a quantized file."
                    raise UsageError("this engine cannot quantize", fix=fix)
                unquantized = files[0]
                files = (quantized(files, spec.quantize, self.find_tool("llama-quantize"), notice=self.notice),)
        except UsageError as error:
            where = ": ".join(filter(None, (f"models.{role} ({one_line(spec.source, 120)})", error.where)))
            raise UsageError(error.what, where=where, fix=error.fix, installs=error.installs) from None
        hashed = tuple(ModelFile(file, file.stat().st_size, file_sha256(file, self.notice)) for file in files)
        return _with_facts(ResolvedModel(spec.source, hashed, unquantized, folder))

    def first(self, text: str, *, safetensors: bool = False) -> Path:
        """Return a source's first file, or its folder (of a repository of the hub with `safetensors`), absolute."""
        match source := _parsed(text):
            case PathSource():
                return self._of_path(source)
            case BundledSource():
                return _from_bundle(source, self.notice)
            case HubSource():
                return self._of_hub(source, folders=safetensors and source.file is None)
            case ServedSource():
                raise UsageError("this model is served by an endpoint and has no files", fix="Name a model's files.")

    def files(self, source: str, drafts_for: str | None = None) -> tuple[Path, ...]:
        """Return the GGUF files of a source, all shards in order, each with a sound header.

        Safetensors are converted first, where `find_tool` can find the converter; a draft head without a tokenizer
        (EAGLE-3, DFlash, DSpark) with that of `drafts_for`, the target's.
        """
        first = self.first(source, safetensors=self.find_tool is not None)
        if is_safetensors_folder(first):
            if self.find_tool is None:
                fix = "Make it one first: benchctl models quantize FOLDER --type bf16 (or another type)."
                message = "this is a folder of safetensors, not a GGUF file"
                raise UsageError(message, where=one_line(str(first)), fix=fix)
            target = self._target_folder(drafts_for) if needs_target(first) else None
            for folder in filter(None, (first, target)):
                if not self.may_run_code and (code := code_in(folder)) is not None:
                    raise UsageError(
                        "llama.cpp's converter may run Python code that this model brings or names",
                        where=one_line(str(code), 400),
                        fix="If you trust it, add --trust-recipe. Otherwise remove it, or name a GGUF file.",
                    )
            first = converted(first, self.find_tool("convert_hf_to_gguf.py"), notice=self.notice, target=target)
        files = all_shards(first)
        for file in files:
            read_header(file)
        return files

    def folder(self, source: str) -> Path:
        """Return the Hugging Face folder of a source, derived where it is a bundled model."""
        parsed = _parsed(source)
        if isinstance(parsed, HubSource):
            if parsed.file is not None:
                fix = f"Write hf:{parsed.repo}, without a file."
                raise UsageError("this engine reads whole repositories of safetensors", fix=fix)
            return self._of_hub(parsed, folders=True, files=False)
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
        for candidate in dict.fromkeys(location.absolute() for location in tried):
            if candidate.exists():
                return _first_shard(candidate)
        fix = f"Searched: {' and '.join(dict.fromkeys(one_line(str(location.absolute())) for location in tried))}."
        if not path.is_absolute() and len(path.parts) == 2 and path.suffix == "":
            fix += f" For a repository of the Hugging Face hub write hf:{one_line(source.path)}."
        raise UsageError("there is no such model file", fix=fix)

    def _of_hub(self, source: HubSource, *, folders: bool, files: bool = True) -> Path:
        """Return a repository's GGUF file (`files`), or its folder of safetensors (`folders`)."""

        def below(folder: Path) -> Path | None:
            if files and (path := find_local(source, folder)):
                return _first_shard(path)
            return _local_folder(source, folder) if folders else None

        if self.models_dir is not None:
            if not self.models_dir.expanduser().is_dir():
                raise UsageError("this folder does not exist", where=f"--models-dir {one_line(str(self.models_dir))}")
            if path := below(self.models_dir.expanduser().absolute()):
                return path
        try:
            return fetch(source, self.notice, safetensors=folders) if files else fetch_folder(source, self.notice)
        except OfflineError as error:
            for folder in (self.recipe_folder / "models", self.recipe_folder, Path.cwd() / "models", Path.cwd()):
                if path := below(folder.absolute()):
                    return path
            repository = source.repo.split("/")[-1]
            named = source.file.rsplit("/", 1)[-1] if source.file else f"{repository}.gguf"
            missing = [
                *([named] if files else []),
                *([f"the folder {repository} with its safetensors"] if folders else []),
            ]
            fix = f"Connect, or put {' or '.join(missing)} into a folder and name it: --models-dir FOLDER"
            raise UsageError(f"the model is not on this machine: {error}", fix=fix) from None


def _with_facts(model: ResolvedModel) -> ResolvedModel:
    """Return a model with what its files say of it. Raises UsageError for a damaged file."""
    if model.folder is not None:
        return replace(model, facts=folder_facts(model.folder))
    headers = [read_header(file.path) for file in model.files]
    facts, first = facts_of(headers), headers[0]
    state = recurrent_state(first, facts.recurrent_layers)
    return replace(
        model,
        facts=facts.as_dict() | {"end_tokens": sorted(end_tokens(first))},
        cache_bytes=kv_cache_bytes(first, facts.attention_layers) or 0,
        state_bytes=state.total if state else 0,
    )


def _local_folder(source: HubSource, folder: Path) -> Path | None:
    """Return the repository's safetensors below `folder`: ORG/REPO, or REPO."""
    organisation, repository = source.repo.split("/")
    places = (folder / organisation / repository, folder / repository)
    return next((path for path in places if is_safetensors_folder(path)), None)


def _parsed(text: str) -> Source:
    try:
        return parse_source(text)
    except ValueError as error:
        raise UsageError(f"{error}") from None


def _first_shard(path: Path) -> Path:
    return path if path.is_dir() else all_shards(path)[0]


def _from_bundle(source: BundledSource, notice: Notice | None) -> Path:
    models = {model.name: model for model in bundled_models()}
    if not models:
        fix = "Install a released benchctl, or check out the repository with its model files."
        raise UsageError("this installation of benchctl has no bundled models", fix=fix)
    if source.name in PADDED:
        _from_bundle(BundledSource(PADDED[source.name][0]), notice)
        return padded_model(source.name, notice)
    if source.name not in models:
        fix = did_you_mean(source.name, models).strip() or f"Known: {', '.join(models)}."
        raise UsageError(f"benchctl ships no model called '{one_line(source.name, 60)}'", fix=fix)
    path, fix = models[source.name].path, "Install benchctl again."
    if not path.is_file():
        raise UsageError(f"the bundled file {path.name} is missing", fix=fix)
    if not hmac.compare_digest(file_sha256(path, notice), models[source.name].sha256):
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
        candidates = [directory / name for directory in places for name in dict.fromkeys((source.file, short))]
        return next((path for path in candidates if path.is_file()), None)
    for directory in places[:2]:
        if match := _one_of(sorted(directory.glob("*.gguf")), source):
            return match
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


# A token's time on a large model is the time of reading its weights; the bundled models are too small for that. Zeros
# in rows of `ffn_gate` and `ffn_up` and in columns of `ffn_down` add nothing to any activation: act(0) * 0 * 0 = 0.

_WIDER = {"ffn_gate.weight": 0, "ffn_up.weight": 0, "ffn_down.weight": 1}
"""The feed-forward matrices, and which of their axes (rows, columns) is padded."""
_ROOM = 2.0
"""Free memory that is asked for, as a multiple of the file: the weights are mapped, and lie in the page cache."""


def padded_file(name: str) -> Path:
    """Return where a padded model lies once it is made."""
    base, times = PADDED[name]
    return cache_folder() / "padded" / f"{base}-ffn-{times}.gguf"


def padded_model(name: str, notice: Notice | None = None) -> Path:
    """Return the file of a padded bundled model, made where it is not there yet. Raises StorageError."""
    base, times = PADDED[name]
    source, into = bundled_folder() / f"{base}.gguf", padded_file(name)

    def make(part: Path) -> None:
        wider = sum(tensor.elements for tensor in read_header(source).tensors if _axis(tensor.name) is not None)
        _check_room(into.parent, source.stat().st_size + 4 * times * wider)
        _write(source, part, times)

    try:
        read_header(into)
    except UsageError:  # missing, or cut short
        with suppress(OSError):
            into.unlink()
    try:
        return made_once(into, make, notice)
    except OSError as error:
        raise StorageError(f"the padded model could not be written: {error.strerror}", where=str(into)) from error


def _check_room(folder: Path, size: int) -> None:
    import psutil

    free = {"disk": shutil.disk_usage(folder).free, "memory": psutil.virtual_memory().available}
    for resource, needed in (("disk", size), ("memory", round(_ROOM * size))):
        if free[resource] < needed:
            raise StorageError(
                f"the padded model needs {needed / 1e9:.1f} GB of free {resource}, and there are "
                f"{free[resource] / 1e9:.1f} GB",
                where=str(folder),
                fix="Free some, or measure the bundled model itself.",
            )


def _axis(tensor: str) -> int | None:
    return next((axis for name, axis in _WIDER.items() if tensor.endswith(name)), None)


def _write(source: Path, into: Path, times: int) -> None:
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(into, architecture)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            value = field.contents()
            wide = value * times if name == f"{architecture}.feed_forward_length" else value
            writer.add_key_value(name, wide, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        if (axis := _axis(tensor.name)) is None:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        else:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            zeros = [
                (0, size * (times - 1) if axis_index == axis else 0) for axis_index, size in enumerate(values.shape)
            ]
            writer.add_tensor(tensor.name, np.pad(values, zeros))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
