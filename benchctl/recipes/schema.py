"""The recipe as it is run: every arm concrete and under a condition, every default filled in.

`benchctl.recipes.load` is the form of a file; it makes this form of that. These models check a
value at a time; how the parts must fit together is `benchctl.recipes.relations`.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from benchctl.errors import UsageError
from benchctl.recipes.adapters import default_spec, kinds, registered
from benchctl.recipes.engine_spec import Device, EndpointSpec, EngineSpec, LaunchedEngineSpec, Strict
from benchctl.recipes.groups import ComparedArm, GroupKey, ModelName, with_baselines
from benchctl.recipes.speculation import Speculation, takes_draft


def _with_kind(engine: object) -> object:
    """Name the default engine where a recipe names none."""
    return {"kind": kinds()[0], **engine} if isinstance(engine, dict) else engine


if TYPE_CHECKING:
    AnyEngine = EngineSpec
else:
    AnyEngine = Annotated[
        Annotated[
            reduce(or_, (adapter.spec for adapter in registered().adapters.values())), Field(discriminator="kind")
        ],
        BeforeValidator(_with_kind),
    ]
    """The branches of all registered adapters, told apart by `kind`."""

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$"
MAX_NAME = 64
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=MAX_NAME)]
"""A name that is also a safe file name."""


class QuantizeSpec(Strict):
    """A quantization to make from the source file: a base type, and tensors that keep another."""

    type: str = Field(description="A llama-quantize type such as q8_0, q4_k_m, bf16.", examples=["q8_0", "q4_k_m"])
    tensors: dict[str, str] = Field(
        default_factory=dict, description="Tensor pattern to GGML type.", examples=[{"ssm_out": "bf16"}]
    )
    allow_requantize: bool = Field(default=False, description="Take a source that is quantized already; loses quality.")


class ModelSpec(Strict):
    """A model of the pair."""

    source: str = Field(
        min_length=1,
        description="A path | hf:ORG/REPO[/FILE] | bundled:NAME.",
        examples=[
            "bundled:tiny-hybrid",
            "hf:Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        ],
    )
    quantize: QuantizeSpec | None = Field(
        default=None, description="Quantize the file before it is used; null: as it is."
    )

    @property
    def name(self) -> ModelName:
        """Its source, and what distinguishes it from other models of a recipe."""
        return ModelName(self.source, () if self.quantize is None else (self.quantize.model_dump_json(),))


class ModelPair(Strict):
    """The target model, and the draft model that proposes tokens for it."""

    target: ModelSpec = Field(description="The model whose output is measured.")
    draft: ModelSpec | None = Field(default=None, description="The model that drafts, for the types that need it.")


class PromptsSpec(Strict):
    """Which prompts are sent."""

    suite: str = Field(
        min_length=1,
        description="A prompts file: a path, or the name of a suite that benchctl ships.",
        examples=["prompts.json"],
    )
    tasks: list[Name] | None = Field(default=None, min_length=1, description="Null: every task of the suite.")
    limit: int | None = Field(default=None, ge=1, description="At most so many prompts of each task.")
    skip_bad: bool = Field(
        default=False, description="Leave out rows of a .jsonl or .json file that are no prompts; they are counted."
    )
    context: str | None = Field(
        default=None, min_length=1, description="A text that pads prompts to context_length; null: benchctl's own."
    )


Concurrency = Annotated[int, Field(ge=1, le=1024)]
ContextLength = Annotated[int, Field(ge=16, le=10_000_000)]
Rate = Annotated[float, Field(gt=0, le=100_000)]
Temperature = Annotated[float, Field(ge=0, le=10)]


Penalty = Annotated[float, Field(ge=-2, le=2)]


def _token_ids(value: object) -> object:
    """Read the ids of tokens, which are text where JSON has them as keys."""
    if not isinstance(value, dict):
        return value
    return {int(key) if isinstance(key, str) and key.isdecimal() else key: bias for key, bias in value.items()}


LogitBias = Annotated[
    dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(_token_ids)
]


class Sampling(Strict):
    """How tokens are chosen. The default is greedy."""

    temperature: Temperature = Field(default=0.0, description="0 is greedy.")
    top_k: int = Field(default=1, ge=0, description="Sample among so many most probable tokens; 0: all.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Sample among the most probable tokens up to this mass.")
    max_tokens: int = Field(default=128, ge=1, le=1_000_000, description="Longest answer in tokens.")
    seed: int = Field(default=1, ge=0, le=2**31 - 1, description="Seed of the sampler.")
    ignore_eos: bool = Field(default=False, description="Go on past the end of the answer, so that lengths are equal.")
    repeat_penalty: float = Field(
        default=1.0, gt=0, le=10, description="Divides the logits of repeated tokens; 1: off."
    )
    presence_penalty: Penalty = Field(default=0.0, description="Taken off the logit of a token that was there before.")
    frequency_penalty: Penalty = Field(default=0.0, description="Taken off it for every time that it was there.")
    logit_bias: LogitBias = Field(
        default_factory=dict, description="Added to the logits of tokens, by id.", examples=[{15043: -100}]
    )
    grammar: str | None = Field(default=None, min_length=1, description="What answers must be, in GBNF.")

    @property
    def constraints(self) -> dict[str, Any]:
        """What is set of the keys that change which token is the likeliest, by name."""
        return {key: value for key in CONSTRAINTS if (value := getattr(self, key)) != getattr(GREEDY, key)}

    @property
    def penalised(self) -> bool:
        """Whether tokens that were there before are penalised."""
        return bool({*PENALTIES} & self.constraints.keys())

    @property
    def chain(self) -> list[str]:
        """Which samplers are applied, by llama.cpp's names in order; biases and grammars stand before any."""
        cut = ["top_k"] if self.temperature == 0 else ["top_k", "top_p"]
        return [*(["penalties"] if self.penalised else []), *cut, "temperature"]


GREEDY = Sampling()
PENALTIES = ("repeat_penalty", "presence_penalty", "frequency_penalty")
CONSTRAINTS = (*PENALTIES, "logit_bias", "grammar")
"""Keys of `sampling` that an engine may lack (`Adapter.sampling`)."""


MAX_ARM_NAME = 160
ArmName = Annotated[str, Field(pattern=NAME_PATTERN, max_length=MAX_ARM_NAME)]
"""A name with the labels of its conditions and axes; with its block still a file name."""

KvType = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$", max_length=32)]


class CacheTypes(Strict):
    """Types of the KV caches by the engine's own names; null: what the engine chooses."""

    target: KvType | None = Field(default=None, description="Of the target's KV cache.", examples=["q8_0"])
    draft: KvType | None = Field(default=None, description="Of the draft's KV cache.")


class ArmBase(Strict):
    """What both forms of an arm have."""

    name: Any
    speculation: Any
    args: list[str] = Field(default_factory=list, description="Further engine arguments of this arm alone.")
    url: str | None = Field(default=None, description="This arm's endpoint, where it is not engine.url.")


STATED_NATS = 0.3


class LosslessSpec(Strict):
    """What a verdict of *consistent with the target* has to exclude."""

    detect_nats: float = Field(
        default=STATED_NATS,
        gt=0,
        le=5,
        description="An arm is consistent only where an engine that accepts the target's runner-up within so many nats "
        "would have been found with a probability of 80 %.",
    )


class GoodputSpec(Strict):
    """What a request must keep to be counted as good, under every condition of the recipe."""

    ttft_s: float | None = Field(default=None, gt=0, le=3600, description="Most seconds to the first token.")
    tpot_s: float | None = Field(default=None, gt=0, le=60, description="Most seconds a token after the first.")


class Conditions(Strict):
    """Under what an arm is measured; in a file it stands once for all arms."""

    concurrency: Concurrency = Field(default=1, description="Most requests in flight at a time.")
    rate: Rate | None = Field(
        default=None, description="Requests sent a second, whatever is in flight; null: as they end."
    )
    context_length: ContextLength | None = Field(
        default=None, description="Pad or cut prompts before their question to so many tokens."
    )


class Arm(Conditions, ArmBase):
    """A concrete setting to be measured, under its condition; `speculation` is null for a run of the target alone."""

    name: ArmName = Field(description="The arm's name, which is also its label in the records.")
    speculation: Speculation | None = Field(default=None, description="Null: the target alone.")
    setup: ArmName | None = Field(default=None, description="Of a recipe with axes: the setup that it runs in.")
    group: ArmName | None = Field(
        default=None, description="Of a recipe with axes: whose baseline it is compared with."
    )
    cache_type: CacheTypes | None = Field(default=None, description="Types of the KV caches; null: the engine's.")
    of: Name | None = Field(default=None, description="The arm of the recipe that this is under a condition.")
    temperature: Temperature | None = Field(
        default=None, description="Instead of sampling.temperature; null: that one."
    )
    max_tokens: int | None = Field(default=None, ge=1, description="Instead of sampling.max_tokens; null: that one.")
    again: bool = Field(default=False, description="A second cell of the baseline in every block.")

    @property
    def overlapping(self) -> bool:
        """Whether several of its requests may be in flight at a time."""
        return self.concurrency > 1 or self.rate is not None


MAX_BLOCKS = 1000
FIRST_LOOK = 5
"""With `half_width`, how many blocks are measured before the first look at the intervals."""
FIRST_DECISION = 3
"""The same for a run that ends when it is decided. Below three blocks there is no interval."""
DECISION_MIN = 30.0
"""Minutes that such a run takes at most, unless the recipe says otherwise."""
Schedule = Literal["blocks", "interleaved"]
Preflight = Literal["on", "strict", "off"]


class AutoBlocks(Strict):
    """As many blocks as it takes: a run ends when every arm is decided, or at a limit.

    With `half_width` it ends when every arm's interval is so narrow, whatever it says.
    """

    half_width: float | None = Field(
        default=None, gt=0, le=0.5, description="Half the width of the 95 % interval, as a share of the speed-up."
    )
    max: int = Field(default=20, ge=FIRST_DECISION, le=MAX_BLOCKS, description="At most so many blocks.")
    budget_min: float | None = Field(
        default=None,
        gt=0,
        le=100_000,
        description="After the third, no block begins that would not end within so many minutes; "
        f"{DECISION_MIN:g} where no half_width is asked for.",
    )

    @property
    def first_look(self) -> int:
        """After how many blocks the run may end for the first time."""
        return min(self.max, FIRST_DECISION if self.half_width is None else FIRST_LOOK)

    @property
    def minutes(self) -> float | None:
        """The budget that holds; `None`: there is none."""
        return DECISION_MIN if self.budget_min is None and self.half_width is None else self.budget_min


def _kind_of_blocks(value: object) -> str | None:
    if isinstance(value, (dict, AutoBlocks)):
        return "mapping"
    if value == "auto":
        return "word"
    number = isinstance(value, (int, float)) or (isinstance(value, str) and any(map(str.isdigit, value)))
    return "number" if number else None  # text with digits was meant as a number: its message says what is wrong


Number = Annotated[int, Field(ge=1, le=MAX_BLOCKS), Tag("number")]
Mapped = Annotated[AutoBlocks, Tag("mapping")]
BY_KIND = Discriminator(
    _kind_of_blocks,
    custom_error_type="blocks",
    custom_error_message="expected an integer, auto or {max: 20, budget_min: 30}",
)


class RecipeBase(Strict):
    """What both forms of a recipe have, in the order in which a file is read."""

    name: Name = Field(description="The recipe's name; its runs are kept under it.")
    description: str | None = Field(default=None, description="What question the recipe answers.")
    engine: AnyEngine = Field(default_factory=default_spec, description="Which engine, and how it is started.")
    models: Any
    prompts: PromptsSpec
    sampling: Sampling = Sampling()
    lossless: LosslessSpec = LosslessSpec()
    goodput: GoodputSpec | None = Field(
        default=None, description="Limits: the requests a second that keep them are shown for every condition."
    )
    blocks: Any
    schedule: Schedule = Field(
        default="blocks",
        description="blocks: the arms of a block in turn; interleaved: prompt by prompt, all engines up.",
    )
    preflight: Preflight = Field(
        default="on",
        description="Check models and context before anything is measured. on: warn; strict: stop; off: no check.",
    )
    warmup: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Unmeasured requests at the start of every process; null: until two in a row take the same time "
        "(within 10 %), 10 at most, and none once the second and later ones took 30 s.",
    )
    baseline: Name = Field(default="baseline", description="The arm that every other is compared with.")
    arms: Any


ABOUT_MODELS = "The target, and a draft; an endpoint's may be left out."
ABOUT_ARMS = "The settings to be measured."
BLOCKS = Field(
    default=5,
    description="Fresh processes of each arm: the unit of replication. auto, or a mapping: as many as it takes.",
    examples=[5, "auto", {"half_width": 0.02, "max": 20, "budget_min": 30}],
)


class Setup(Strict):
    """An engine with a pair of models: a point of a recipe's axes."""

    name: ArmName
    group: ArmName = Field(description="Setups of a group compute the target alike; one baseline stands for all.")
    axes: dict[str, str] = Field(description="The label of its value on every axis.")
    engine: AnyEngine
    models: ModelPair


class Recipe(RecipeBase):
    """A whole recipe, expanded; where it has axes, `engine` and `models` are those of the first setup."""

    models: ModelPair = Field(description=ABOUT_MODELS)
    blocks: Annotated[Number | Mapped, BY_KIND] = BLOCKS
    arms: list[Arm] = Field(min_length=1, description=ABOUT_ARMS)
    setups: list[Setup] = Field(default_factory=list, description="What `matrix` stands for; empty without it.")

    def alone(self, command: str) -> Recipe:
        """Return the recipe. Raises UsageError where it has several setups, since `command` takes one."""
        if len(self.setups) > 1:
            names = ", ".join(setup.name for setup in self.setups[:6])
            raise UsageError(
                f"{command} takes one engine and pair of models, and this recipe has {len(self.setups)} setups: "
                f"{names}.",
                where="matrix",
                fix="Write a recipe of the setup that you mean.",
            )
        return self

    def unconstrained(self, command: str) -> Recipe:
        """Return the recipe. Raises UsageError for penalties, biases or a grammar, which `command` does not send."""
        for key in self.sampling.constraints:
            raise UsageError(
                f"{command} compares with the target's own distribution, which {key} changes.",
                where=f"sampling.{key}",
                fix="Leave it out of the recipe.",
            )
        return self

    @property
    def parts(self) -> dict[str | None, Recipe]:
        """The recipe of every setup, by its name: an engine, a pair, its arms; the recipe itself without axes.

        The baseline of a setup that has none of its own is its group's, which is then among the arms, too.
        """
        if not self.setups:
            return {None: self}
        compared = self.compared  # made once: with a thousand arms it is most of the time that planning takes
        by_name = {arm.name: arm for arm in self.arms}
        by_setup: dict[str | None, list[Arm]] = {}
        for arm in self.arms:
            by_setup.setdefault(arm.setup, []).append(arm)
        parts: dict[str | None, Recipe] = {}
        for setup in self.setups:
            if setup_arms := by_setup.get(setup.name):
                baselines = list(dict.fromkeys(compared[arm.name].baseline for arm in setup_arms))
                names = {arm.name for arm in setup_arms}
                arms = [*(by_name[name] for name in baselines if name not in names), *setup_arms]
                pair = {"engine": setup.engine, "models": setup.models, "setups": []}
                parts[setup.name] = self.model_copy(update=pair | {"baseline": baselines[0], "arms": arms})
        return parts

    @property
    def device(self) -> Device:
        """Where the models run; `auto` for an endpoint, where it is not known."""
        return self.engine.device if isinstance(self.engine, LaunchedEngineSpec) else "auto"

    @property
    def binary(self) -> str | None:
        """The engine's binary, where the recipe names it."""
        return self.engine.binary if isinstance(self.engine, LaunchedEngineSpec) else None

    @property
    def first_blocks(self) -> int:
        """How many blocks are measured whatever they show."""
        return self.blocks.first_look if isinstance(self.blocks, AutoBlocks) else self.blocks

    def sampling_of(self, arm: Arm) -> Sampling:
        """Return how tokens are chosen in `arm`."""
        own = {"temperature": arm.temperature, "max_tokens": arm.max_tokens}
        return self.sampling.model_copy(update={name: value for name, value in own.items() if value is not None})

    def group_of(self, arm: Arm) -> GroupKey:
        """Return what `arm` has in common with its baseline."""
        temperature = self.sampling_of(arm).temperature
        return GroupKey(arm.group, arm.context_length, arm.concurrency, arm.rate, temperature, arm.max_tokens)

    @property
    def compared(self) -> dict[str, ComparedArm]:
        """What each arm is compared with, by its name."""
        setups = {setup.name: setup for setup in self.setups}
        arms = []
        for arm in self.arms:
            ran_on = setups.get(arm.setup or "", self)
            cache = arm.cache_type or CacheTypes()
            url = ran_on.engine.url if isinstance(ran_on.engine, EndpointSpec) else None
            draft = ran_on.models.draft if arm.speculation and takes_draft(arm.speculation.types) else None
            arms.append(
                ComparedArm(
                    name=arm.name,
                    of=arm.of or arm.name,
                    group=self.group_of(arm),
                    setup=arm.setup,
                    engine=ran_on.engine.kind,
                    url=arm.url or url,
                    target=ran_on.models.target.name,
                    draft=None if draft is None else draft.name,
                    target_cache=cache.target,
                    draft_cache=cache.draft,
                )
            )
        return with_baselines(arms, self.baseline, [arm.name for arm in self.arms if arm.again])

    def arm(self, name: str) -> Arm:
        """Return the arm called `name`; raises KeyError."""
        return {arm.name: arm for arm in self.arms}[name]
