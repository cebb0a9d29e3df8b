"""Launching a run's baseline again: the same binary, model and command line, or the reason why that cannot be."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import TracebackType

from benchctl.data.manifest import ArmIdentity, Manifest, ModelIdentity
from benchctl.data.store import RunData
from benchctl.data.writer import folder_lock
from benchctl.engines.base import Engine, Launch, Rendered, Renders
from benchctl.engines.registry import make_engine
from benchctl.engines.scoring import Replayer, ReplayingEngine, Scorer, ScoringEngine, SlotScorer, SlotScoringEngine
from benchctl.errors import BenchctlError, EngineError, StorageError, UsageError
from benchctl.lossless.judge.selection import Answer, unchanged_prompts
from benchctl.measurement.cell import fresh_log, running, scoring
from benchctl.measurement.prepare import require_permitted
from benchctl.measurement.requests import render
from benchctl.measurement.resume import context_of_run
from benchctl.measurement.run import context_of
from benchctl.models.files import ModelFile, ResolvedModel, ResolvedPair, file_sha256
from benchctl.models.sources import ModelSearch
from benchctl.permissions import is_own_command, permit
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Arm, Recipe, Sampling
from benchctl.recipes.speculation import takes_draft
from benchctl.text import one_line

RENDERED_DIFFERENTLY = "the engine now renders the prompt differently"


class RelaunchError(Exception):
    """Why a baseline cannot be launched as it was: a sentence for people."""


def _no_launch(arm: str) -> Launch:
    raise RelaunchError(f"the command line of {arm} is not known")


@dataclass(frozen=True)
class Relaunch:
    """A baseline that can be launched again."""

    engine: ScoringEngine
    launch: Launch
    sampling: Sampling
    """The recipe's."""
    prompts: Mapping[tuple[str, int], Prompt]
    """The run's prompts that are still what they were, by task and index."""
    prompts_lack: str
    """Why the others are not here."""
    context_length: int | None = None
    context_text: str = ""
    kind: str = ""
    """Of the engine."""
    launch_of: Callable[[str], Launch] = field(default=_no_launch)
    """From an arm's name to its own command line with the files of today. Raises RelaunchError."""

    def render(self, scorer: Renders, prompt: Prompt) -> Rendered:
        """Return a prompt as the model got it, in the length that the run gave it. Raises EngineError."""
        return render(scorer, prompt, self.context_length, self.context_text)

    def prompt_of(self, scorer: Renders, answer: Answer) -> Rendered | None:
        """Return the prompt that was answered; `None` where that is not what it renders to now."""
        prompt = self.prompts.get((answer.task, answer.prompt_idx))
        if prompt is None:
            return None
        rendered = self.render(scorer, prompt)
        same_text = answer.prompt_sha is None or rendered.sha256 == answer.prompt_sha
        same_length = answer.prompt_tokens is None or len(rendered.token_ids) == answer.prompt_tokens
        return rendered if same_text and same_length else None

    def no_prompt_of(self, answer: Answer) -> str:
        """Return why `prompt_of` is `None`, as the end of a sentence."""
        return RENDERED_DIFFERENTLY if (answer.task, answer.prompt_idx) in self.prompts else self.prompts_lack

    @contextmanager
    def scorer(self, folder: Path, name: str) -> Iterator[Scorer]:
        """Have the target alone running, as the only benchctl that writes into the run's folder; `name` is its log's.

        Raises RelaunchError where the folder cannot be written, EngineError, and StorageError when another benchctl
        writes there.
        """
        with (
            _only_writer(folder),
            scoring(self.engine, self.launch, fresh_log(folder, name)[1], self.sampling) as scorer,
        ):
            yield scorer

    @contextmanager
    def slot_scorer(self, folder: Path, name: str) -> Iterator[SlotScorer]:
        """As `scorer`, with the slots of a baseline of several requests; RelaunchError also where there is none."""
        if not isinstance(self.engine, SlotScoringEngine):
            raise RelaunchError("this engine has no logits for batches that several requests share")
        with _only_writer(folder):
            log = fresh_log(folder, name)[1]
            scorer = self.engine.start_slot_scorer(self.launch, log, self.sampling)
            with running(scorer, log):
                yield scorer

    @contextmanager
    def replayer(self, folder: Path, launch: Launch) -> Iterator[Replayer]:
        """As `scorer`, with a target that replays answers; `launch` is one of `ReplayingEngine.replay_launch`."""
        assert isinstance(self.engine, ReplayingEngine), "the caller checks it"
        with _only_writer(folder):
            log = fresh_log(folder, "replay")[1]
            replayer = self.engine.start_replayer(launch, log, self.sampling)
            with running(replayer, log):
                yield replayer


class Target:
    """The target of a run: launched again alone when it is first needed, and running until it is left or stopped.

    What fails ends its process; the next need launches another.
    """

    def __init__(
        self,
        run: RunData,
        baseline: str,
        *,
        binary: str | None = None,
        models_dir: Path | None = None,
        trusted: bool = False,
    ) -> None:
        """The parameters are those of `relaunch`."""
        self.run = run
        self.baseline = baseline
        self._how = partial(relaunch, run, binary=binary, models_dir=models_dir, trusted=trusted)
        self._again: Relaunch | None = None
        self._scorer: Scorer | None = None
        self._running = ExitStack()

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scorer = None
        self._running.__exit__(kind, failure, trace)

    def again(self, baseline: str | None = None) -> Relaunch:
        """Return the run's baseline, or that of another condition, to be launched. Raises as `relaunch` does."""
        if baseline is not None and baseline != self.baseline:
            return self._how(baseline)
        self._again = self._again or self._how(self.baseline)
        return self._again

    @contextmanager
    def scorer(self) -> Iterator[Scorer]:
        """Have the target running. Raises as `relaunch` and `Relaunch.scorer` do."""
        try:
            if self._scorer is None:
                self._scorer = self._running.enter_context(self.again().scorer(self.run.folder, "scoring"))
            yield self._scorer
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def stop(self) -> None:
        """End its process, so that another may use the machine and the run's folder."""
        self.__exit__(None, None, None)


@dataclass
class ScoringOutcome:
    """What scoring brought, beside the scores."""

    reason: str | None = None
    """Why nothing, or nothing more, could be scored; the end of a sentence."""
    error: EngineError | None = None
    """The engine's failure, where that was it."""
    by_answer: dict[tuple[str, int], str] = field(default_factory=dict)
    """Why single answers could not be scored, by task and index."""

    @contextmanager
    def keeping_failures(self) -> Iterator[None]:
        """Keep why the block ended early; StorageError goes through."""
        try:
            yield
        except RelaunchError as error:
            self.reason = str(error)
        except EngineError as error:
            self.reason, self.error = f"the engine failed: {error.what}", error
        except StorageError:
            raise
        except BenchctlError as error:
            self.reason = error.what


@contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    if not os.access(folder, os.W_OK):
        raise RelaunchError("the run's folder cannot be written, so nothing could be kept")
    with folder_lock(folder, "measuring or replaying in this run"):
        yield


def relaunch(
    run: RunData,
    baseline: str,
    *,
    binary: str | None = None,
    models_dir: Path | None = None,
    trusted: bool = False,
) -> Relaunch:
    """Find what the baseline ran with, and check it: files by hash. Raises RelaunchError, EngineError.

    `trusted`: whatever the run's recipe and command line ask for passes. A run may be somebody else's, and relaunching
    it runs what is in its manifest.
    """
    manifest = run.manifest
    if manifest is None:
        raise RelaunchError("the run has no manifest, so what it ran with is not known")
    arm = next((planned for planned in manifest.arms if planned.name == baseline), None)
    served = manifest.target.path is None
    if arm is None or not (served or arm.argv):
        raise RelaunchError(f"the manifest has no command line of {baseline}")
    if arm.speculation is not None:
        raise RelaunchError(f"{baseline} speculates itself, so it does not show the target alone")
    context = context_of_run(run, trusted=trusted)
    recipe, home = context.recipe, context.folder
    try:
        permit(recipe, home, trusted=context.trusted)
    except UsageError as error:
        raise RelaunchError(f"{' '.join(error.what.split())} Add --trust-recipe if you trust its writer") from None
    trusted = trusted or (context.trusted and is_own_command(manifest.run, arm.argv))
    spec = recipe.engine
    if not served:
        spec = spec.model_copy(update={"binary": None if binary else _recorded_binary(arm.argv[0])})
    engine = make_engine(spec, binary=None if served else binary)
    if not isinstance(engine, ScoringEngine):
        raise RelaunchError(f"benchctl cannot read logits of the engine {recipe.engine.kind}")
    if served:
        launch = _same_endpoint(engine, recipe.arm(baseline), manifest)
    else:
        try:
            recorded = manifest.engine.details
            require_permitted(engine, home, trusted=trusted, recorded=recorded, named_by="run's manifest")
        except UsageError as error:
            raise RelaunchError(f"{error.what.rstrip('.')} ({error.where}). {error.fix}".rstrip(".")) from None
        launch, beyond = _same_process(engine, recipe.arm(baseline), manifest, arm, models_dir)
        if beyond and not trusted:
            shown = one_line(shlex.join(beyond), 400)
            raise RelaunchError(
                f"its command line has words that its recipe does not ask for: {shown}. Read the run's manifest; if "
                "you trust its writer, add --trust-recipe"
            )

    def launch_of(name: str) -> Launch:
        identity = next((planned for planned in manifest.arms if planned.name == name), None)
        if identity is None or not identity.argv or all(planned.name != name for planned in recipe.arms):
            raise RelaunchError(f"the manifest has no command line of {name}")
        ran_on = manifest.model_copy(update={"draft": run.drafts.get(name, manifest.draft)})
        own, more = _same_process(engine, recipe.arm(name), ran_on, identity, models_dir)
        if more and not trusted:
            raise RelaunchError(f"the command line of {name} has words that its recipe does not ask for")
        return own

    prompts, lack = _prompts(manifest, recipe, home)
    text, kind = context_of(recipe, home), recipe.engine.kind
    return Relaunch(engine, launch, recipe.sampling, prompts, lack, arm.context_length, text, kind, launch_of)


def _same_endpoint(engine: Engine, arm: Arm, manifest: Manifest) -> Launch:
    """Return the baseline's endpoint, which runs already: it must be the same server, and serve the same names.

    That its weights are the same is taken on trust; that its tokens are the baseline's is checked when it scores.
    """
    capabilities = engine.probe()
    if (capabilities.version, capabilities.details) != (manifest.engine.version, manifest.engine.details):
        raise RelaunchError("the endpoint is another server now, or serves other models")
    return engine.launch(arm, ResolvedPair(ResolvedModel(manifest.target.source, ()), None))


def _same_process(
    engine: Engine, arm: Arm, manifest: Manifest, recorded: ArmIdentity, models_dir: Path | None
) -> tuple[Launch, list[str]]:
    """Return an arm's command line with the files of today, and what of it benchctl would not write."""
    capabilities = engine.probe()
    if any(capabilities.details.get(part) != manifest.engine.details.get(part) for part in ("sha256", "siblings")):
        raise RelaunchError(f"the engine at {capabilities.binary} is not the one that ran (its hash differs)")
    target, draft = _model(manifest.target, models_dir), None
    moved = {str(Path(manifest.target.path or "").expanduser()): str(target.path)}
    if manifest.draft is not None and takes_draft(recorded.types):
        draft = _model(manifest.draft, models_dir)
        moved[str(Path(manifest.draft.path or "").expanduser())] = str(draft.path)
    launch = engine.launch(arm, ResolvedPair(target, draft))
    arguments = [str(Path(word).expanduser()) if word.startswith("~/") else word for word in recorded.argv]
    argv = [moved.get(word, word) for word in arguments[1:]]
    unexpected = _beyond([*recorded.argv[:1], *argv], launch.argv)
    return Launch((str(capabilities.binary), *argv), launch.env, launch.set_by_us), unexpected


def _beyond(recorded: Sequence[str], expected: Sequence[str]) -> list[str]:
    """Return the options of a recorded command line that benchctl would not write, or not with that value.

    Another number is no matter: machines differ in their threads.
    """
    pairs = set(pairwise([*expected[1:], ""]))
    flags = {word for word in expected[1:] if word.startswith("-")}
    numbers = {word for word, after in pairs if after.isdecimal()}
    unexpected: list[str] = []
    for word, after in pairwise([*recorded[1:], ""]):
        same = (word, after) in pairs or (word in flags and after.startswith("-"))
        same = same or (word in numbers and after.isdecimal())
        if word.startswith("-") and not same:
            unexpected += [word] if after.startswith("-") or not after else [word, after]
    return unexpected


def _recorded_binary(recorded: str) -> str:
    path = Path(recorded).expanduser()
    if not path.is_file():
        raise RelaunchError(f"the engine is no longer at {recorded}; name it with --engine-binary")
    return str(path.absolute())


def _model(model: ModelIdentity, models_dir: Path | None) -> ResolvedModel:
    """Find a model's files where the manifest has them, or in `models_dir`, and check every hash.

    Those of a Hugging Face model lie in a folder; what was derived from a file that benchctl ships is made again.
    """
    first = Path(model.path or "").expanduser()
    names = [identity.name for identity in model.files]
    in_folder = first.suffix != ".gguf" and not any(name.endswith(".gguf") for name in names)
    home = first if in_folder else first.parent
    folders = [folder.expanduser() for folder in (models_dir, home) if folder is not None]
    if in_folder and models_dir is not None:
        folders.insert(0, models_dir.expanduser() / first.name)
    if in_folder and not home.is_dir() and model.source.startswith("bundled:"):
        folders.append(ModelSearch(Path.cwd()).folder(model.source))
    if not in_folder and model.source.startswith("bundled:") and not first.is_file():  # padded, and removed since
        folders += [file.parent for file in ModelSearch(Path.cwd()).files(model.source)]
    files = []
    for identity in model.files:
        candidates = [folder / identity.name for folder in folders if (folder / identity.name).is_file()]
        if not candidates:
            raise RelaunchError(f"the model file {identity.name} is not here; name its folder with --models-dir")
        path = next((path for path in candidates if file_sha256(path) == identity.sha256), None)
        if path is None:
            raise RelaunchError(f"the model file {candidates[0]} is not the one that ran (its hash differs)")
        files.append(ModelFile(path, identity.size, identity.sha256))
    if not files:
        raise RelaunchError("the manifest names no model file")
    places = {file.path.parent for file in files}
    if in_folder and len(places) > 1:
        raise RelaunchError(f"the model's files are in {len(places)} folders; name the one that has all: --models-dir")
    return ResolvedModel(model.source, tuple(files), folder=places.pop() if in_folder else None)


def _prompts(manifest: Manifest, recipe: Recipe, folder: Path) -> tuple[dict[tuple[str, int], Prompt], str]:
    """Return the prompts whose hash is the manifest's, and why others lack."""
    suite = recipe.prompts.suite
    try:
        usable = unchanged_prompts(manifest, suite, folder)
    except BenchctlError as error:
        return {}, f"the prompts file {suite} cannot be read ({error.what})"
    return usable, f"the prompt in {suite} is no longer the one that was measured"
