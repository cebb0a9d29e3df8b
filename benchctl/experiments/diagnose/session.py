"""Diagnosing drafts: target and draft read the target's own answers.

First the target alone answers every prompt, greedily and sampled. If an engine can read an answer with draft and target
together (`ComparingEngine`), it does so. On other engines target and draft model are scored one after the other, as far
as their logprobs reach. There the draft model also answers the prompts alone, so that its step is timed.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchctl.data.traces import DiagnosisSettings, Expectations
from benchctl.data.writer import LOGS, folder_lock
from benchctl.engines.base import Launch, Rendered, Server
from benchctl.engines.scoring import Comparer, ComparingEngine, ScoringEngine
from benchctl.errors import EngineError, UsageError
from benchctl.experiments.diagnose.expectations import expectations
from benchctl.experiments.diagnose.stored import (
    FOLDER,
    DiagnosedDraft,
    Diagnosis,
    DraftCosts,
    ForcedAnswer,
    Status,
    write_diagnosis,
)
from benchctl.lossless.score.reading import scores_of
from benchctl.measurement.cell import fresh_log, running, scoring
from benchctl.measurement.manifest import new_manifest
from benchctl.measurement.plan import spread_over_tasks, spread_seed
from benchctl.measurement.prepare import Prepared, PreparedSetup
from benchctl.models.files import ResolvedPair
from benchctl.models.footprint import step_flops
from benchctl.prompts.suite import Prompt, PromptItem
from benchctl.recipes.schema import Arm, Sampling

CORPUS, PASSAGE, PASSAGES = "corpus", 512, 64
"""The task of a corpus, and how it is read: so many passages at most of so many tokens, each from its beginning."""
PAIR = ("draft-simple", "assisted", "draft_model")
"""Speculation types that draft with a separate language model, `models.draft`."""

Progress = Callable[[str, int, int], None]
"""Called with the step, how many answers are done, and how many there are."""


@dataclass(frozen=True)
class TargetAnswer:
    """An answer of the target alone."""

    item: PromptItem
    prompt: Rendered
    temperature: float
    token_ids: tuple[int, ...]

    def forced(self, read: Expectations) -> ForcedAnswer:
        """Return the answer with what was read of it, as it is stored."""
        return ForcedAnswer(
            **read.model_dump(),
            task=self.item.task,
            prompt_idx=self.item.prompt_idx,
            temperature=self.temperature,
            tokens=len(self.token_ids),
        )


def drafts_of(prepared: Prepared) -> tuple[list[DiagnosedDraft], dict[str, str]]:
    """Return the ways to draft that can be diagnosed, with nothing read, and for every arm that cannot the reason."""
    recipe = prepared.recipe.unconstrained("This check")
    drafts: dict[str, DiagnosedDraft] = {}
    not_reached: dict[str, str] = {}
    for arm in recipe.arms:
        if arm.speculation is None:
            continue
        setup, name = prepared.setup_of(arm.name), _name(arm, prepared)
        with_model = bool(set(arm.speculation.types) & set(PAIR))
        reason = None
        if isinstance(setup.engine, ComparingEngine):
            reason = setup.engine.incomparable(arm)
        elif not with_model or len(arm.speculation.types) > 1:
            reason = (
                "only a draft model of its own can be scored on this engine; its draft probabilities are not reported"
            )
        if reason is not None:
            not_reached[arm.name] = reason
        elif name in drafts:
            drafts[name].arms.append(arm.name)
        else:
            drafts[name] = _unread(name, arm, setup, with_model=with_model)
    if not drafts:
        reasons = "; ".join(dict.fromkeys(not_reached.values()))
        raise UsageError(
            f"No arm of this recipe can be diagnosed{': ' + reasons if reasons else ': none speculates'}.",
            where=recipe.name,
            fix="Write an arm that drafts with a model, or with a part of the target (engine transformers).",
        )
    return list(drafts.values()), not_reached


def _unread(name: str, arm: Arm, setup: PreparedSetup, *, with_model: bool) -> DiagnosedDraft:
    """Return a way to draft without readings. Raises UsageError if its engine reports no logits."""
    if not isinstance(setup.engine, ComparingEngine | ScoringEngine):
        raise UsageError(
            f"benchctl cannot read logits of the engine {setup.capabilities.kind}.",
            where="engine.kind",
            fix="Diagnose the pair on another engine.",
        )
    exact = isinstance(setup.engine, ComparingEngine)
    return DiagnosedDraft(name=name, arms=[arm.name], kind="pair" if with_model else "part", exact=exact)


def _name(arm: Arm, prepared: Prepared) -> str:
    """Return the way an arm drafts in words: its type and options, without the depth; over axes with its setup."""
    assert arm.speculation is not None
    options = ", ".join(f"{key}={value}" for key, value in (arm.speculation.options or {}).items())
    where = arm.setup if len(prepared.setups) > 1 else None
    details = "; ".join(filter(None, (options, where)))
    return " + ".join(arm.speculation.types) + (f" ({details})" if details else "")


def diagnose(
    prepared: Prepared,
    settings: DiagnosisSettings,
    count: int,
    corpus: str,
    out: Path,
    command: list[str],
    progress: Progress,
) -> tuple[Path, Diagnosis]:
    """Diagnose every way to draft of a prepared recipe on `count` prompts; return the folder and what was found.

    `corpus`: a text on which the loss without a part is taken; nothing: it is taken on prompts and answers.
    A way that fails keeps its error, and the others go on. Raises EngineError where the target itself cannot answer,
    UsageError, StorageError, and KeyboardInterrupt, after which what was read is kept.
    """
    drafts, not_reached = drafts_of(prepared)
    prompts = spread_over_tasks(prepared.prompts, count)
    manifest = new_manifest(prepared, command)
    chosen = {(item.task, item.prompt_idx) for item in prompts}
    manifest.prompts = [prompt for prompt in manifest.prompts if (prompt.task, prompt.prompt_idx) in chosen]
    diagnosis = Diagnosis(settings=settings, manifest=manifest, not_reached=not_reached)
    folder = out / prepared.recipe.name / FOLDER / manifest.run
    with folder_lock(folder, "diagnosing here"):
        _keep(folder, diagnosis, "started")
        (folder / LOGS).mkdir(exist_ok=True)
        try:
            for target, target_drafts in _by_target(drafts, prepared).items():
                session = _Session(prepared, target, settings, prompts, folder, progress)
                session.answer(corpus)
                for draft in target_drafts:
                    session.read(draft)
                    diagnosis.drafts.append(draft)
                    _keep(folder, diagnosis, "started")
        except BaseException as stop:
            _keep(folder, diagnosis, "interrupted" if isinstance(stop, KeyboardInterrupt) else "failed")
            raise
        _keep(folder, diagnosis, "failed" if any(draft.error for draft in diagnosis.drafts) else "finished")
    return folder, diagnosis


def _by_target(drafts: Sequence[DiagnosedDraft], prepared: Prepared) -> dict[str, list[DiagnosedDraft]]:
    """Return the ways to draft by the baseline whose target they draft for."""
    compared = prepared.recipe.compared
    first = {arm.group.setups: arm.baseline for arm in reversed(compared.values())}
    by_baseline: dict[str, list[DiagnosedDraft]] = {}
    for draft in drafts:
        by_baseline.setdefault(first[compared[draft.arms[0]].group.setups], []).append(draft)
    return by_baseline


def _keep(folder: Path, diagnosis: Diagnosis, status: Status) -> None:
    diagnosis.status = status
    diagnosis.manifest.status = "started" if status == "started" else "finished"
    write_diagnosis(folder, diagnosis)


class _Session:
    """The diagnosis of a target: its answers, then each way to draft."""

    def __init__(
        self,
        prepared: Prepared,
        baseline: str,
        settings: DiagnosisSettings,
        prompts: Sequence[PromptItem],
        folder: Path,
        progress: Progress,
    ) -> None:
        self._prepared, self._settings, self._prompts = prepared, settings, prompts
        self._folder, self._progress = folder, progress
        self._baseline, self._setup = prepared.recipe.arm(baseline), prepared.setup_of(baseline)
        self._target_answers: list[TargetAnswer] = []
        self._corpus: tuple[int, ...] = ()
        self._target_step_s: float | None = None
        self._scores: list[list[Mapping[int, float]]] = []

    def answer(self, corpus: str) -> None:
        """Let the target answer every prompt, greedily and sampled, and tokenize the corpus if there is one."""
        with self._server("the target answers", self._setup.models) as server:
            answers, self._target_step_s = self._answers(server, sampled=True)
            self._target_answers = [answer for answer in answers if len(answer.token_ids) > 1]
            if corpus:
                self._corpus = tuple(server.render(Prompt(prompt=corpus)).token_ids or ())
        if not self._target_answers:
            raise EngineError(
                "The target ends every answer at once, so there is nothing to draft.",
                kind="protocol",
                where=str(self._folder),
                fix="Choose prompts that it answers.",
            )

    def read(self, draft: DiagnosedDraft) -> None:
        """Read the answers with a way to draft."""
        arm = draft.arms[0]
        try:
            if draft.exact:
                self._compare(draft, self._prepared.launches[arm])
            else:
                self._score(draft, self._prepared.setup_of(arm).models)
        except EngineError as error:
            draft.error = error.what

    def _compare(self, draft: DiagnosedDraft, launch: Launch) -> None:
        """Read with draft and target in the same process."""
        engine, log = self._setup.engine, self._log(draft.name)
        assert isinstance(engine, ComparingEngine)
        with running(engine.start_comparer(launch, log), log) as comparer:
            draft.what = {name: value for name, value in comparer.describe().items() if name != "max"}
            for number, answer in enumerate(self._target_answers):
                self._progress(f"{draft.name}: reading", number, len(self._target_answers))
                arguments = answer.prompt.token_ids, answer.token_ids, answer.temperature
                draft.answers.append(answer.forced(comparer.compare(*arguments, self._settings)))
            if draft.kind == "part":
                self._read_corpus(comparer, draft)
            target_flops, draft_flops = comparer.flops(self._target_answers[0].prompt.token_ids)
            draft.costs = DraftCosts(
                target_step_s=typical([step for answer in draft.answers for step in answer.steps_target]),
                draft_step_s=typical([step for answer in draft.answers for step in answer.steps_draft]),
                checks_s=_typical_checks(draft.answers),
                target_flops=target_flops,
                draft_flops=draft_flops,
                flops_how="torch's own count of a step",
            )

    def _read_corpus(self, comparer: Comparer, draft: DiagnosedDraft) -> None:
        """Take the loss on passages of the text: each is an answer of a token, so that nothing is drafted in it."""
        starts = range(0, min(len(self._corpus), PASSAGE * PASSAGES) - 1, PASSAGE)
        for number, start in enumerate(starts):
            self._progress(f"{draft.name}: reading the corpus", number, len(starts))
            *before, last = self._corpus[start : start + PASSAGE]
            if before:
                read = comparer.compare(before, [last], 0.0, self._settings)
                draft.answers.append(
                    ForcedAnswer(**read.model_dump(), task=CORPUS, prompt_idx=number, temperature=0.0, tokens=1)
                )

    def _score(self, draft: DiagnosedDraft, models: ResolvedPair) -> None:
        """Score target and draft model in turn, and time the draft model alone."""
        assert models.draft is not None
        draft_alone = ResolvedPair(models.draft, None)
        if not self._scores:
            self._scores = self._scored("the target scores", self._setup.models)
        all_draft_scores = self._scored(f"{draft.name} scores", draft_alone)
        for answer, target, draft_scores in zip(self._target_answers, self._scores, all_draft_scores, strict=True):
            read = expectations(answer.token_ids, target, draft_scores, answer.temperature, self._settings.top)
            draft.answers.append(answer.forced(read))
        with self._server(f"{draft.name} answers", draft_alone) as server:
            _, step_s = self._answers(server, sampled=False)
        draft.costs = DraftCosts(
            target_step_s=self._target_step_s,
            draft_step_s=step_s,
            target_flops=step_flops(self._setup.models.target),
            draft_flops=step_flops(models.draft),
            flops_how="two a weight that is multiplied with; attention over the cache left out",
        )

    def _scored(self, title: str, models: ResolvedPair) -> list[list[Mapping[int, float]]]:
        engine = self._setup.engine
        assert isinstance(engine, ScoringEngine)
        launch = engine.launch(self._baseline, models)
        scored = []
        with scoring(engine, launch, self._log(title)) as scorer:
            for number, answer in enumerate(self._target_answers):
                self._progress(title, number, len(self._target_answers))
                scores = scores_of(scorer, answer.prompt.token_ids, answer.token_ids, self._settings.top)
                scored.append([position.logprobs for position in scores])
        return scored

    def _answers(self, server: Server, *, sampled: bool) -> tuple[list[TargetAnswer], float | None]:
        """Return the answers of a server's model, and the typical time of its step in the greedy ones."""
        answers, steps = [], []
        temperatures = (0.0, self._settings.temperature) if sampled else (0.0,)
        for number, (item, temperature) in enumerate(itertools.product(self._prompts, temperatures)):
            self._progress("answering", number, len(self._prompts) * len(temperatures))
            prompt = server.render(item.prompt)
            sampling = self._sampling(temperature, spread_seed(1 + number))
            done = asyncio.run(server.complete(prompt, sampling))
            ids = done.token_ids if done.token_ids is not None else server.recover_token_ids(prompt, sampling, done)
            if not prompt.token_ids or ids is None:
                raise EngineError(
                    "The engine does not report token ids, by which draft and target are compared.",
                    kind="protocol",
                    where=f"{item.task}/{item.prompt_idx}",
                )
            answers.append(TargetAnswer(item, prompt, temperature, tuple(ids)))
            decode_s = done.engine_decode_s or done.decode_s
            if temperature == 0 and done.n_predicted > 1 and decode_s > 0:
                steps.append(decode_s / (done.n_predicted - 1))
        return answers, typical(steps)

    def _sampling(self, temperature: float, seed: int) -> Sampling:
        """Return greedy sampling, or sampling from the whole vocabulary."""
        cut = {"top_k": 1, "seed": 1} if temperature == 0 else {"top_k": 0, "seed": seed}
        changes = {"temperature": temperature, "top_p": 1.0, "max_tokens": self._settings.tokens, "ignore_eos": False}
        return self._prepared.recipe.sampling.model_copy(update=changes | cut)

    @contextmanager
    def _server(self, title: str, models: ResolvedPair) -> Iterator[Server]:
        self._progress(title, 0, len(self._prompts))
        engine = self._setup.engine
        log = self._log(title)
        with running(engine.start(engine.launch(self._baseline, models), log), log) as server:
            yield server

    def _log(self, title: str) -> Path:
        return fresh_log(self._folder, re.sub(r"\W", "-", title))[1]


def _typical_checks(answers: Sequence[Expectations]) -> dict[int, float]:
    widths = sorted({width for answer in answers for width in answer.checks})
    return {width: median(answer.checks[width] for answer in answers if width in answer.checks) for width in widths}


def typical(seconds: Sequence[float]) -> float | None:
    """Return the median of some times; `None` of none."""
    return median(seconds) if seconds else None
