"""A recipe's `source`, resolved to files on this machine: checked, hashed and, where requested, quantized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchctl.errors import UsageError
from benchctl.models.convert import code_in, converted, is_safetensors_folder, needs_target
from benchctl.models.file_kind import check_index, check_kind, folder_error
from benchctl.models.files import ORIGIN, ModelFile, Notice, ResolvedModel, ResolvedPair, file_sha256
from benchctl.models.folder_facts import folder_facts
from benchctl.models.footprint import kv_cache_bytes, recurrent_state
from benchctl.models.gguf_facts import all_shards, facts_of
from benchctl.models.gguf_header import read_header
from benchctl.models.hub import OfflineError, fetch, fetch_folder, find_local, local_folder
from benchctl.models.quantize import Program, quantized, quantized_before
from benchctl.models.shipped import bundled_file
from benchctl.models.vocabulary import end_tokens
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
    of_windows,
    parse_source,
)
from benchctl.text import one_line

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
    """Called with a few words before a step that takes long."""
    find_tool: FindTool | None = None
    quantizes: bool = True
    """Whether what a recipe has converted or quantized is made where it is missing. Else the first is an error, and the
    source stands in for the second."""
    may_run_code: bool = False
    """Whether llama.cpp's converter may run Python code that a folder of safetensors brings."""

    def pair(self, models: ModelPair, form: ModelFormat = "gguf") -> ResolvedPair:
        """Return the hashed files of both models in the form that an engine takes, downloaded and quantized."""
        target = self._resolved("target", models, models.target, form)
        draft = None if models.draft is None else self._resolved("draft", models, models.draft, form)
        return ResolvedPair(target, draft)

    def check(self, models: ModelPair, form: ModelFormat = "gguf") -> dict[str, Path]:
        """Refuse a model that is named wrongly, missing or damaged, before anything is built, fetched or hashed.

        Returns the first GGUF file of each role, where one lies here already.
        """
        local: dict[str, Path] = {}
        for role, spec in (("target", models.target), ("draft", models.draft)):
            if spec is None or form == "served":
                continue
            try:
                source = _parsed(spec.source)
                if isinstance(source, PathSource):
                    first = self._of_path(source)
                    if first.is_dir():
                        _check_folder(first)
                    elif form == "gguf":
                        check_kind([read_header(file) for file in all_shards(first)])
                        local[role] = first
                elif isinstance(source, BundledSource) and source.name not in PADDED:
                    local[role] = bundled_file(source, None)
            except UsageError as error:
                raise _of_role(role, spec, error) from None
        return local

    def _resolved(self, role: str, models: ModelPair, spec: ModelSpec, form: ModelFormat) -> ResolvedModel:
        unquantized = folder = unmade = None
        try:
            if form == "served":
                return ResolvedModel(spec.source, ())
            if form == "huggingface":
                folder = self.folder(spec.source)
                files = tuple(file for file in sorted(folder.iterdir()) if file.is_file() and file.name != ORIGIN)
            else:
                files = self.files(spec.source, models.target.source if role == "draft" else None)
                check_kind([read_header(file) for file in files])
            if spec.quantize is not None and folder is None:
                if self.find_tool is None:
                    fix = "Leave `quantize` out and name a quantized file."
                    raise UsageError("this engine cannot quantize", fix=fix)
                unquantized, tool = files[0], self.find_tool("llama-quantize")
                if self.quantizes:
                    files = (quantized(files, spec.quantize, tool, notice=self.notice),)
                elif (made := quantized_before(files, spec.quantize, tool, self.notice)) is not None:
                    files = (made,)
                else:
                    unmade = spec.quantize.type
        except UsageError as error:
            raise _of_role(role, spec, error) from None
        hashed = tuple(ModelFile(file, file.stat().st_size, file_sha256(file, self.notice)) for file in files)
        return _with_facts(ResolvedModel(spec.source, hashed, unquantized, unmade, folder))

    def first(self, text: str, *, safetensors: bool = False) -> Path:
        """Return a source's first file, or its folder (of a repository of the hub with `safetensors`), absolute."""
        match source := _parsed(text):
            case PathSource():
                return self._of_path(source)
            case BundledSource():
                return bundled_file(source, self.notice)
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
        if first.is_dir():
            _check_folder(first)
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
            first = converted(
                first,
                self.find_tool("convert_hf_to_gguf.py"),
                notice=self.notice,
                target=target,
                make_now=self.quantizes,
            )
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
            _check_folder(first)
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
        beside = [file.name for folder in {place.parent for place in tried} for file in folder.glob("*.gguf")]
        searched = dict.fromkeys(one_line(str(location.absolute())) for location in tried)
        fix = of_windows(source.path) or f"{did_you_mean(path.name, beside)} Searched: {' and '.join(searched)}."
        if not path.is_absolute() and len(path.parts) == 2 and path.suffix == "":
            fix += f" For a repository of the Hugging Face hub write hf:{one_line(source.path)}."
        raise UsageError("there is no such model file", fix=fix.strip())

    def _of_hub(self, source: HubSource, *, folders: bool, files: bool = True) -> Path:
        """Return a repository's GGUF file (`files`), or its folder of safetensors (`folders`)."""

        def below(folder: Path) -> Path | None:
            if files and (path := find_local(source, folder)):
                return _first_shard(path)
            return local_folder(source, folder) if folders else None

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


def _of_role(role: str, spec: ModelSpec, error: UsageError) -> UsageError:
    """Return an error with the model that it is about."""
    where = ": ".join(filter(None, (f"models.{role} ({one_line(spec.source, 120)})", error.where)))
    return UsageError(error.what, where=where, fix=error.fix, installs=error.installs)


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


def _parsed(text: str) -> Source:
    try:
        return parse_source(text)
    except ValueError as error:
        raise UsageError(f"{error}") from None


def _check_folder(folder: Path) -> None:
    """Raises UsageError for what is no whole folder of safetensors."""
    if not is_safetensors_folder(folder):
        raise folder_error(folder)
    check_index(folder)


def _first_shard(path: Path) -> Path:
    return path if path.is_dir() else all_shards(path)[0]
