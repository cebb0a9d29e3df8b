"""The recipe as it is run: every arm concrete and under one condition, every default filled in.

`benchctl.recipes.written` is the form of a file; `benchctl.recipes.load` makes this one from it. These models check one
value at a time; how the parts must fit together is `benchctl.recipes.relations`.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from benchctl.recipes.adapters import default_spec, kinds, registered
from benchctl.recipes.engine_spec import Device, EngineSpec, LaunchedEngineSpec, Strict
from benchctl.recipes.speculation import Speculation


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


class SamplingBase(Strict):
    """What both forms of `sampling` have."""

    temperature: Any
    top_k: int = Field(default=1, ge=0, description="Sample among so many most probable tokens; 0: all.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Sample among the most probable tokens up to this mass.")
    max_tokens: int = Field(default=128, ge=1, le=1_000_000, description="Longest answer in tokens.")
    seed: int = Field(default=1, ge=0, le=2**31 - 1, description="Seed of the sampler.")
    ignore_eos: bool = Field(default=False, description="Go on past the end of the answer, so that lengths are equal.")


Concurrency = Annotated[int, Field(ge=1, le=1024)]
Rate = Annotated[float, Field(gt=0, le=100_000)]
Temperature = Annotated[float, Field(ge=0, le=10)]


class Sampling(SamplingBase):
    """How tokens are chosen. The default is greedy."""

    temperature: Temperature = Field(default=0.0, description="0 is greedy.")


class ArmBase(Strict):
    """What both forms of an arm have."""

    name: Any
    speculation: Any
    args: list[str] = Field(default_factory=list, description="Further engine arguments of this arm alone.")
    url: str | None = Field(default=None, description="This arm's endpoint, where it is not engine.url.")


class Arm(ArmBase):
    """One concrete setting to be measured; `speculation` is null for a run of the target alone.

    `of`, `concurrency`, `rate` and `temperature` are the condition; in a file they stand once for all arms.
    """

    name: Name = Field(description="The arm's name, which is also its label in the records.")
    speculation: Speculation | None = Field(default=None, description="Null: the target alone.")
    of: Name | None = Field(default=None, description="The arm of the recipe that this is under one condition.")
    concurrency: Concurrency = Field(default=1, description="Most requests in flight at a time.")
    rate: Rate | None = Field(
        default=None, description="Requests sent a second, whatever is in flight; null: as they end."
    )
    temperature: Temperature | None = Field(
        default=None, description="Instead of sampling.temperature; null: that one."
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
    custom_error_message="expected an integer, auto or {half_width: 0.02, max: 20}",
)


class RecipeBase(Strict):
    """What both forms of a recipe have, in the order in which a file is read."""

    name: Name = Field(description="The recipe's name; its runs are kept under it.")
    description: str | None = Field(default=None, description="What question the recipe answers.")
    engine: AnyEngine = Field(default_factory=default_spec, description="Which engine, and how it is started.")
    models: Any
    prompts: PromptsSpec
    sampling: Any
    blocks: Any
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
    arms: Any


ABOUT_MODELS = "The target, and a draft; an endpoint's may be left out."
ABOUT_ARMS = "The settings to be measured."
BLOCKS = Field(
    default=5,
    description="Fresh processes of each arm: the unit of replication. auto, or a mapping: as many as it takes.",
    examples=[5, "auto", {"half_width": 0.02, "max": 20, "budget_min": 30}],
)


class Recipe(RecipeBase):
    """A whole recipe, expanded; `benchctl.recipes.load.load_recipe` makes one from a file."""

    models: ModelPair = Field(description=ABOUT_MODELS)
    sampling: Sampling = Sampling()
    blocks: Annotated[Number | Mapped, BY_KIND] = BLOCKS
    arms: list[Arm] = Field(min_length=1, description=ABOUT_ARMS)

    @property
    def device(self) -> Device:
        """Where the models run; `auto` for an endpoint, which does not say."""
        return self.engine.device if isinstance(self.engine, LaunchedEngineSpec) else "auto"

    @property
    def binary(self) -> str | None:
        """The engine's binary, where the recipe names one."""
        return self.engine.binary if isinstance(self.engine, LaunchedEngineSpec) else None

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
