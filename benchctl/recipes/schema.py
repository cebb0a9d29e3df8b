"""The schema of a recipe: what a YAML file may say, and what each word means.

These models check one value at a time and the relations between arms. Where in the file a wrong value stands, and the
nearest valid word, is the work of `benchctl.recipes.load`. `Recipe` is what a file says; `Recipe.expanded` is the list
of concrete arms that its matrices stand for.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from benchctl.recipes.adapters import adapter_of, default_spec, kinds, registered
from benchctl.recipes.engine_spec import Device, EngineSpec, LaunchedEngineSpec, Strict


def _with_kind(engine: object) -> object:
    """Name the default engine where a recipe names none."""
    return {"kind": kinds()[0], **engine} if isinstance(engine, dict) else engine


if TYPE_CHECKING:
    AnyEngine = EngineSpec
else:
    AnyEngine = Annotated[
        Annotated[reduce(or_, (one.spec for one in registered().adapters.values())), Field(discriminator="kind")],
        BeforeValidator(_with_kind),
    ]
    """The branches of all registered adapters, told apart by `kind`."""

SpeculationWord = Literal[
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
    "draft-dspark",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
]
"""benchctl's own words: an adapter maps those that its engine knows to the engine's names."""
SPECULATION_WORDS: tuple[str, ...] = get_args(SpeculationWord)
SpeculationType = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=64)]
"""One of benchctl's words, or a method by the engine's own name, where its adapter takes such names and checks them."""
NEEDS_DRAFT_MODEL: frozenset[str] = frozenset({"draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark"})
"""Types that cannot work without `models.draft`. `draft-mtp` may find its head inside the target."""

MAX_DEPTH = 64
"""No engine verifies more draft tokens a round than this; larger depths are taken for typing errors."""

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
    """One model of the pair."""

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


class ModelPair(Strict):
    """The target that answers, and the draft that guesses."""

    target: ModelSpec = Field(description="The model whose answers count.")
    draft: ModelSpec | None = Field(default=None, description="The model that guesses, for the types that need one.")


class PromptsSpec(Strict):
    """Which prompts are asked."""

    suite: str = Field(
        min_length=1,
        description="A prompts file: a path, or the name of a suite that benchctl ships.",
        examples=["prompts.json"],
    )
    tasks: list[Name] | None = Field(default=None, min_length=1, description="Null: every task of the suite.")
    limit: int | None = Field(default=None, ge=1, description="At most so many prompts of each task.")


class Sampling(Strict):
    """How tokens are chosen. The default is greedy."""

    temperature: float = Field(default=0.0, ge=0, le=10, description="0 is greedy.")
    top_k: int = Field(default=1, ge=0, description="Sample among so many most probable tokens; 0: all.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Sample among the most probable tokens up to this mass.")
    max_tokens: int = Field(default=128, ge=1, le=1_000_000, description="Longest answer in tokens.")
    seed: int = Field(default=1, ge=0, le=2**31 - 1, description="Seed of the sampler.")
    ignore_eos: bool = Field(default=False, description="Go on past the end of the answer, so that lengths are equal.")


OptionScalar = bool | int | float | str
OptionValue = OptionScalar | list[OptionScalar] | list[list[OptionScalar]] | dict[str, OptionScalar]


class Speculation(Strict):
    """One setting of speculation in benchctl's words; each adapter maps them to the flags of the binary at hand."""

    type: SpeculationType | list[SpeculationType] = Field(
        description="A type, or several that work together; of some engines also a method by its own name.",
        examples=["draft-simple", "ngram-simple"],
    )
    max: int | None = Field(default=None, ge=1, le=MAX_DEPTH, description="Draft depth k: most draft tokens a round.")
    min: int | None = Field(default=None, ge=0, le=MAX_DEPTH, description="Fewest draft tokens worth verifying.")
    p_min: float | None = Field(default=None, ge=0, le=1, description="Drafting stops below this probability.")
    size_n: int | None = Field(default=None, ge=1, le=1024, description="n-gram types: length of the looked-up key.")
    size_m: int | None = Field(default=None, ge=1, le=1024, description="n-gram types: length of the copied draft.")
    min_hits: int | None = Field(default=None, ge=1, le=1024, description="n-gram types: hits before a draft is made.")

    options: dict[str, OptionValue] | None = Field(
        default=None,
        description="Further settings by the engine's own keys, of engines that take their own methods.",
        examples=[{"suffix_decoding_max_tree_depth": 16}],
    )

    @property
    def types(self) -> tuple[str, ...]:
        """The types as a tuple, whether one or several were named."""
        return (self.type,) if isinstance(self.type, str) else tuple(self.type)

    @property
    def uses_draft_model(self) -> bool:
        """Whether any of the types cannot work without a draft model."""
        return any(name in NEEDS_DRAFT_MODEL for name in self.types)


MAX_CONCURRENCY = 1024
OF_CONDITIONS: tuple[str, ...] = ("of", "concurrency", "rate", "temperature")
"""Fields of an arm that a file does not give arm by arm: `benchctl.recipes.conditions`."""


class Arm(Strict):
    """One concrete setting to be measured; `speculation` is null for a run of the target alone.

    `of`, `concurrency`, `rate` and `temperature` are the condition; in a file they stand once for all arms.
    """

    name: Name = Field(description="The arm's name, which is also its label in the records.")
    speculation: Speculation | None = Field(default=None, description="Null: the target alone.")
    args: list[str] = Field(default_factory=list, description="Further engine arguments of this arm alone.")
    url: str | None = Field(default=None, description="This arm's endpoint, where it is not engine.url.")
    of: Name | None = Field(default=None, description="The arm of the recipe that this is under one condition.")
    concurrency: int = Field(default=1, ge=1, le=MAX_CONCURRENCY, description="Most requests in flight at a time.")
    rate: float | None = Field(
        default=None, gt=0, le=100_000, description="Requests sent a second, whatever is in flight; null: as they end."
    )
    temperature: float | None = Field(
        default=None, ge=0, le=10, description="Instead of sampling.temperature; null: that one."
    )

    @property
    def condition(self) -> tuple[int, float | None, float | None]:
        """What the arms that are compared with each other have in common: concurrency, rate, temperature."""
        return self.concurrency, self.rate, self.temperature

    @property
    def overlapping(self) -> bool:
        """Whether several of its requests may be in flight at a time."""
        return self.concurrency > 1 or self.rate is not None


MAX_BLOCKS = 1000
FIRST_LOOK = 5
"""A run with `blocks: auto` measures so many blocks before its intervals are looked at for the first time."""
Schedule = Literal["blocks", "interleaved"]
Preflight = Literal["on", "strict", "off"]


class AutoBlocks(Strict):
    """As many blocks as it takes: a run ends when every arm's interval is narrow enough, or at one of the limits."""

    half_width: float = Field(
        default=0.02, gt=0, le=0.5, description="Half the width of the 95 % interval, as a share of the speed-up."
    )
    max: int = Field(default=20, ge=FIRST_LOOK, le=MAX_BLOCKS, description="At most so many blocks.")
    budget_min: float | None = Field(
        default=None,
        gt=0,
        le=100_000,
        description="No block begins that would not end within so many minutes.",
    )


def _kind_of_blocks(value: object) -> str | None:
    if isinstance(value, (dict, AutoBlocks)) or value == "auto":
        return "auto"
    number = isinstance(value, (int, float)) or (isinstance(value, str) and any(map(str.isdigit, value)))
    return "number" if number else None  # text with digits was meant as a number: its message says what is wrong


Blocks = Annotated[
    Annotated[int, Field(ge=1, le=MAX_BLOCKS), Tag("number")]
    | Annotated[AutoBlocks, BeforeValidator(lambda value: {} if value == "auto" else value), Tag("auto")],
    Discriminator(
        _kind_of_blocks,
        custom_error_type="blocks",
        custom_error_message="expected an integer, auto or {half_width: 0.02, max: 20}",
    ),
]


def _serves(engine: object) -> bool:
    """Whether a file's `engine` is an endpoint that runs already."""
    kind = engine.get("kind") if isinstance(engine, dict) else getattr(engine, "kind", None)
    return kind in kinds() and adapter_of(str(kind)).model_format == "served"


class Recipe(Strict):
    """A whole recipe with its matrices already expanded; `benchctl.recipes.load.load_recipe` makes one from a file."""

    name: Name = Field(description="The recipe's name; its runs are kept under it.")
    description: str | None = Field(default=None, description="What question the recipe answers.")
    engine: AnyEngine = Field(default_factory=default_spec, description="Which engine, and how it is started.")
    models: ModelPair = Field(description="The target, and a draft; an endpoint's may be left out.")
    prompts: PromptsSpec
    sampling: Sampling = Sampling()
    blocks: Blocks = Field(
        default=5,
        description="Fresh processes of each arm: the unit of replication. auto, or a mapping: as many as it takes.",
        examples=[5, "auto", {"half_width": 0.02, "max": 20, "budget_min": 30}],
    )
    schedule: Schedule = Field(
        default="blocks",
        description="blocks: the arms of a block one after the other; interleaved: prompt by prompt, all engines up.",
    )
    preflight: Preflight = Field(
        default="on",
        description="A look at models and context before anything is measured. on: warn; strict: stop; off: no look.",
    )
    warmup: int = Field(default=1, ge=0, le=100, description="Unmeasured requests at the start of every process.")
    baseline: Name = Field(default="baseline", description="The arm that every other is compared with.")
    arms: list[Arm] = Field(min_length=1, description="The settings to be measured.")

    @model_validator(mode="before")
    @classmethod
    def _whatever_is_served(cls, data: object) -> object:
        """An endpoint knows what it serves; everywhere else a recipe without models stays an error."""
        if isinstance(data, dict) and "models" not in data and _serves(data.get("engine")):
            return {**data, "models": {"target": {"source": "served:"}}}
        return data

    @property
    def device(self) -> Device:
        """Where the models run; `auto` for an endpoint, which does not say."""
        return self.engine.device if isinstance(self.engine, LaunchedEngineSpec) else "auto"

    @property
    def threads(self) -> int | None:
        """CPU threads of the engine; `None`: what it takes by itself."""
        return self.engine.threads if isinstance(self.engine, LaunchedEngineSpec) else None

    @property
    def first_blocks(self) -> int:
        """How many blocks are measured whatever they show."""
        return FIRST_LOOK if isinstance(self.blocks, AutoBlocks) else self.blocks

    def sampling_of(self, arm: Arm) -> Sampling:
        """Return how tokens are chosen in `arm`."""
        if arm.temperature is None:
            return self.sampling
        return self.sampling.model_copy(update={"temperature": arm.temperature})

    def baseline_of(self, arm: Arm) -> Arm:
        """Return the baseline under the condition of `arm`; raises KeyError where it was left out."""
        first = self.arm(self.baseline)
        if first.of is None:
            return first
        for other in self.arms:
            if other.of == first.of and other.condition == arm.condition:
                return other
        raise KeyError(arm.name)

    def arm(self, name: str) -> Arm:
        """Return the arm called `name`; raises KeyError."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)
