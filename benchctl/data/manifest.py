"""The manifest: everything about a run that is not a request, kept in `manifest.json` beside the records.

It is rewritten whole and atomically after every cell. Paths below the user's home are written with `~`, so that a run
can be shared. No secret is ever written: of the environment only the names that benchctl itself set.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from benchctl.data.cell import Cell
from benchctl.data.digests import FileDigest
from benchctl.data.versions import Part, StoredFormat
from benchctl.prompts.answers import Answer
from benchctl.prompts.rules import Rules
from benchctl.recipes.groups import ComparedArm, GroupKey, ModelName, recipe_arm, with_baselines
from benchctl.recipes.schema import AutoBlocks
from benchctl.recipes.speculation import takes_draft

RunStatus = Literal["started", "finished", "interrupted", "failed"]


MANIFEST_FORMAT = StoredFormat("manifest", version=5, fix="Restore it from a copy, or run the recipe again.")


class FileIdentity(Part):
    """A file by name and content."""

    name: str
    size: int
    sha256: str


class ModelIdentity(Part):
    """A model of the pair."""

    source: str
    path: str | None
    """The file, the first shard or the folder; `None` for a model that an endpoint serves."""
    files: list[FileIdentity]
    facts: dict[str, Any] = Field(default_factory=dict)
    """From the GGUF header, or the folder's config.json and weights: architecture, parameters, vocabulary size,
    context, hybrid or not."""

    @property
    def name(self) -> ModelName:
        """Its source, and what distinguishes it from other models of that source."""
        return ModelName(self.source, tuple(file.sha256 for file in self.files))


class EngineIdentity(Part):
    """The engine that ran, and what probing it found."""

    kind: str
    binary: str | None
    """`None` for an endpoint that ran already."""
    found_in: str
    version: str | None
    build: str | None
    commit: str | None
    speculation_types: list[str]
    details: dict[str, Any] = Field(default_factory=dict)
    """The adapter's own facts: flag dialect, devices, SHA-256 of the binary and its sibling libraries."""


class SetupIdentity(Part):
    """An engine with a pair of models: a point of a recipe's axes."""

    name: str
    group: str
    """Setups of a group compute the target alike and share a baseline."""
    axes: dict[str, str]
    """The label of its value on every axis."""
    engine: EngineIdentity
    target: ModelIdentity
    draft: ModelIdentity | None


class ArmIdentity(Part):
    """An arm as it was run."""

    name: str
    baseline: bool
    speculation: dict[str, Any] | None
    """The recipe's keys, such as type, max and min; `None` for the target alone."""
    argv: list[str]
    """The exact command line but for the address: host and `{port}` stand for the Unix socket, or the free port, that
    each cell was given."""
    env: list[str]
    """`NAME=value` of the settings that benchctl added to the scrubbed environment."""
    url: str | None = None
    """The address of an endpoint that ran already."""
    of: str | None = None
    """The name of the recipe's arm, without setup and condition; `None` where nothing was swept."""
    setup: str | None = None
    """The name of its setup in `Manifest.setups`; `None` where the recipe has no axes."""
    group: str | None = None
    """The group of its setup. Arms are compared with the baseline of their own group."""
    context_length: int | None = None
    """Tokens that prompts were padded or cut to."""
    memory_bytes: int | None = None
    """An estimate made before the run: model files, caches of the whole context, buffers."""
    concurrency: int = 1
    rate: float | None = None
    """Requests a second of open-loop arrival; `None`: a request is sent when another ends."""
    temperature: float | None = None
    max_tokens: int | None = None
    """Tokens of the longest answer, where that is varied."""
    lossy: list[str] = Field(default_factory=list)
    """Settings that are lossy by design, as the engine's adapter recognises them in `argv` and `env`."""
    again: bool = False
    """Whether it is a second cell of the baseline in every block, whose times count as the baseline's."""
    remembers: bool | None = None
    """Whether it drafts from earlier requests of its process; `None`: not recorded."""

    @property
    def types(self) -> tuple[str, ...]:
        """How it speculates, whether a single type or several are recorded."""
        named = (self.speculation or {}).get("type")
        return (named,) if isinstance(named, str) else tuple(map(str, named if isinstance(named, list) else ()))

    @property
    def overlapping(self) -> bool:
        """Whether several of its requests may be in flight at a time."""
        return self.concurrency > 1 or self.rate is not None


class PromptIdentity(Part):
    """A prompt of the workload."""

    task: str
    prompt_idx: int
    sha256: str
    """The SHA-256 of the prompt as the suite has it. The rendered text's hash is in the records."""
    constrained: str | None = None
    """The key of its request that constrains the answers (`response_format`, `grammar`, …). Scores of the target
    without that constraint show nothing."""
    answer: Answer | None = None
    """The right answer, where the suite has it."""
    rules: Rules | None = None
    """What the form of its answer must be."""


class FurtherPrompt(PromptIdentity):
    """A prompt that was asked after the run; `task` begins with the suite's name where that is not the run's."""

    suite: str
    """What `load_suite` finds it by."""
    suite_task: str
    """Its task in that suite."""


class FurtherPrompts(Part):
    """What was asked after the run for its verdicts alone: no speed is of it. The answers are in `further.jsonl`."""

    prompts: list[FurtherPrompt] = Field(default_factory=list)
    cells: list[Cell] = Field(default_factory=list)
    """Their blocks follow the run's own, one each time that prompts were asked."""
    asking: bool = False
    """Whether answers may follow that the manifest does not know."""

    @property
    def times(self) -> int:
        """How often prompts were asked, each time in blocks of their own."""
        return len({cell.block for cell in self.cells})


class MachineIdentity(Part):
    """A kind of machine of a cluster. Measurements on different kinds are never pooled."""

    name: str
    """Its name in `Cell.machine`, such as `m1`."""
    kind: str
    """SHA-256 of what identifies its kind: processor, GPUs with their driver, engine builds."""
    nodes: list[str]
    """Ids of the cluster's nodes that are of this kind."""
    facts: dict[str, Any] = Field(default_factory=dict)
    """The facts of the first node of the kind (`benchctl.machine.describe`)."""
    engines: dict[str, EngineIdentity] = Field(default_factory=dict)
    """The engine of every setup; the key is "" where the recipe has no axes."""

    @property
    def label(self) -> str:
        """Its name in tables."""
        named = [str(self.facts["name"])] if self.facts.get("name") else []
        cpu = str(self.facts.get("cpu") or "unknown processor")
        devices = [
            str(device.get("name")) for device in self.facts.get("accelerators") or [] if isinstance(device, dict)
        ]
        return f"{self.name}: {', '.join([*named, cpu, *dict.fromkeys(devices)])}"


class IdlePower(Part):
    """The power of the machine before anything was started."""

    seconds: float
    watts: dict[str, float]
    untold: list[str] = Field(default_factory=list)


class PreflightFinding(Part):
    """A problem. The set of ids is that of warnings: `benchctl.analysis.warnings`."""

    id: str
    where: str
    """The recipe's key, such as `models.target`."""
    seen: str
    """The evidence, in sentences; may quote untrusted text."""


class PreflightProbe(Part):
    """A health probe and the target's answer; untrusted text. It is no record, and not timed."""

    name: str
    text: str
    tokens: int
    flaw: str | None = None
    """How the answer is degenerate, as the end of a sentence."""


class PreflightRecord(Part):
    """The checks made before anything was measured, and their findings."""

    mode: Literal["on", "strict", "off"]
    wall_s: float = 0.0
    findings: list[PreflightFinding] = Field(default_factory=list)
    checked: list[str] = Field(default_factory=list)
    """A sentence for every check, passed checks included; where a check could not be made, with the reason."""
    probes: list[PreflightProbe] = Field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether the run may go on: findings stop a strict recipe alone."""
        return self.mode != "strict" or not self.findings

    def find(self, kind: str, where: str, evidence: str) -> None:
        """Add a finding."""
        self.findings.append(PreflightFinding(id=kind, where=where, seen=evidence))

    def judge(self, kind: str, where: str, evidence: str, *, verdict: str | None) -> None:
        """Add a finding, whose sentence `verdict` ends; without a verdict, a check that passed."""
        if verdict is None:
            self.checked.append(f"{evidence}.")
        else:
            self.find(kind, where, f"{evidence}{verdict}")


class DecidedArm(Part):
    """The decision on an arm of a run with `blocks: auto`. A decided arm is measured no further."""

    blocks: int
    """After how many blocks it was decided."""
    speed: Literal["faster", "slower", "within"]
    """`within`: shown to lie within ±5 % of its baseline."""


StopReason = Literal["decided", "reached", "maximum", "budget", "no pairs"]


class Stopped(Part):
    """Why a run with `blocks: auto` measured no further block."""

    reason: StopReason
    """`no pairs`: after the first blocks no arm could be compared with the baseline, so no further block would help."""
    half_widths: dict[str, float | None]
    """Half the width of each arm's interval at the end, as a share of its speed-up; `None`: no interval."""


class TuningRung(Part):
    """One rung of successive halving: the remaining arms, and the blocks that decided it."""

    arms: list[str]
    """The arms, without the baseline, which is in every block."""
    first_block: int
    blocks: int
    """How many further blocks of these arms are measured. Earlier blocks count, too."""
    kept: list[str] | None = None
    """The arms that went on, fastest first; `None` while the rung is measured."""


class Tuning(Part):
    """How a run searched for the fastest setting. Its values are selected: the chosen setting is measured again."""

    budget_s: float
    """For everything: timing the baseline, searching, and measuring the chosen setting again."""
    prompts_per_block: int
    """How many prompts a block has. Each block takes the next prompts of the suite."""
    timing_s: float = 0.0
    """The time of timing the baseline beforehand."""
    guessed: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """Estimated seconds of a process and of an answer, by arm (the baseline included), before they were measured."""
    left_out: list[str] = Field(default_factory=list)
    """Settings that did not fit the budget."""
    rungs: list[TuningRung] = Field(default_factory=list)
    chosen: str | None = None
    """The arm that is measured again; `None` while the search goes on, and where no arm drafted anything."""
    ended: bool = False


class Manifest(Part):
    """A whole run."""

    schema_version: int = Field(default=MANIFEST_FORMAT.version, alias="schema")
    run: str
    """The run's folder name: time stamp and a few hex digits, such as `20261121-110500-3fa9`."""
    benchctl_version: str
    files: dict[str, FileDigest] = Field(default_factory=dict)
    """SHA-256 of the files beside it, by name: the records as far as they were written then, and stored scores."""
    status: RunStatus
    created_at: str
    finished_at: str | None = None
    recipe_name: str
    recipe: dict[str, Any]
    """The recipe as run: expanded arms, defaults filled in, overrides of the command line applied."""
    recipe_folder: str | None = None
    """Where the recipe's relative paths start; `--resume` may be called from anywhere."""
    recipe_sha256: str
    """The SHA-256 of `recipe`."""
    workload_sha256: str
    """The SHA-256 of prompts, sampling and model files. Runs are compared only where it is equal."""
    baseline: str
    blocks: int
    """How many blocks are measured; with `blocks: auto`, how many have begun."""
    ordering: Literal["rotated", "balanced", "mirrored"] = "mirrored"
    """How arms are ordered within blocks. New blocks follow `benchctl.measurement.plan.mirrored`, also when resumed."""
    spent_s: float = 0.0
    """Seconds of measuring, engine starts included, without the cell in which benchctl was killed."""
    decided: dict[str, DecidedArm] = Field(default_factory=dict)
    """The arms that need no further block. Only with `blocks: auto`."""
    stopped: Stopped | None = None
    """Why the run ended. Only with `blocks: auto`."""
    tuning: Tuning | None = None
    """How the run searched for the fastest setting. Only of `benchctl tune`."""
    tuned_in: str | None = None
    """The run that chose the setting that this run measures again."""
    engine: EngineIdentity
    target: ModelIdentity
    draft: ModelIdentity | None
    arms: list[ArmIdentity]
    setups: list[SetupIdentity] = Field(default_factory=list)
    """The setups of a recipe with axes. `engine`, `target` and `draft` are then those of the first."""
    machines: list[MachineIdentity] = Field(default_factory=list)
    """The kinds of machines of a run on a cluster. `machine` is then where benchctl was called."""
    suite: dict[str, Any] = Field(default_factory=dict)
    """name, kind, licence and SHA-256 of the prompts file."""
    prompts: list[PromptIdentity]
    machine: dict[str, Any] = Field(default_factory=dict)
    """CPU, cores, memory, accelerators, driver, OS, governor: see `benchctl.machine.describe`."""
    command: list[str] = Field(default_factory=list)
    """The benchctl command line."""
    idle: IdlePower | None = None
    """`None`: not recorded."""
    preflight: PreflightRecord | None = None
    """`None`: not recorded."""
    cells: list[Cell] = Field(default_factory=list)
    further: FurtherPrompts | None = None
    """What `verify-lossless --more` asked; `None`: nothing."""
    warnings: list[str] = Field(default_factory=list)

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    @property
    def recipe_arms(self) -> dict[object, dict[str, Any]]:
        """The recipe's own arms, by name."""
        return {arm.get("name"): arm for arm in self.recipe.get("arms") or [] if isinstance(arm, dict)}

    @property
    def auto_blocks(self) -> AutoBlocks | None:
        """The rule of a run with `blocks: auto`, else `None`."""
        blocks = self.recipe.get("blocks")
        return AutoBlocks.model_validate(blocks) if isinstance(blocks, dict) else None

    def ended(self) -> dict[str, int]:
        """Return after how many blocks each arm ended that was decided, and each baseline of which no arm is left."""
        ended = {name: decision.blocks for name, decision in self.decided.items()}
        rows = self.compared().values() if ended else ()
        arms: dict[str, list[str]] = {}
        for row in rows:
            if not row.is_baseline and not row.is_again:
                arms.setdefault(row.baseline, []).append(row.name)
        for row in rows:
            group_arms = arms.get(row.baseline, [])
            if row.name not in group_arms and group_arms and all(name in ended for name in group_arms):
                ended[row.name] = max(ended[name] for name in group_arms)
        return ended

    def compared(self, baseline: str | None = None) -> dict[str, ComparedArm]:
        """Return what each arm is compared with, by its name. `baseline`: an arm, in place of the recipe's baseline.

        A second cell counts for its own baseline, and for no other.
        """
        sampling = self.recipe.get("sampling") or {}
        setups, of_recipe = {setup.name: setup for setup in self.setups}, self.recipe_arms
        arms = []
        for arm in self.arms:
            ran_on = setups.get(arm.setup or "", self)
            cache = of_recipe.get(arm.name, {}).get("cache_type")
            cache = cache if isinstance(cache, dict) else {}
            temperature = sampling.get("temperature") if arm.temperature is None else arm.temperature
            draft = ran_on.draft if arm.speculation and takes_draft(arm.types) else None
            arms.append(
                ComparedArm(
                    name=arm.name,
                    of=arm.of or arm.name,
                    group=GroupKey(
                        arm.group,
                        arm.context_length,
                        arm.concurrency,
                        arm.rate,
                        float(temperature or 0),
                        arm.max_tokens,
                    ),
                    setup=arm.setup,
                    engine=ran_on.engine.kind,
                    url=arm.url,
                    target=ran_on.target.name,
                    draft=None if draft is None else draft.name,
                    target_cache=cache.get("target"),
                    draft_cache=cache.get("draft"),
                )
            )
        own_baseline = baseline is None or recipe_arm(arms, baseline) == recipe_arm(arms, self.baseline)
        return with_baselines(
            arms, baseline or self.baseline, [arm.name for arm in self.arms if arm.again and own_baseline]
        )

    @model_validator(mode="after")
    def _blocks_are_understood(self) -> Manifest:
        _ = self.auto_blocks
        return self
