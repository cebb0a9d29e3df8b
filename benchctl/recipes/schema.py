"""The schema of a recipe: what a YAML file may say, and what each word means.

These models check one value at a time and the relations between arms. Where in the file a wrong value stands, and the
nearest valid word, is the work of `benchctl.recipes.load`. `Recipe` is what a file says; `Recipe.expanded` is the list
of concrete arms that its matrices stand for.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

EngineKind = Literal["llama.cpp", "vllm", "sglang", "transformers", "openai"]
Device = Literal["auto", "cpu", "cuda", "metal"]

SpeculationType = Literal[
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
NEEDS_DRAFT_MODEL: frozenset[str] = frozenset({"draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark"})
"""Types that cannot work without `models.draft`. `draft-mtp` may find its head inside the target."""

MAX_DEPTH = 64
"""No engine verifies more draft tokens a round than this; larger depths are taken for typing errors."""

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$"
MAX_NAME = 64
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=MAX_NAME)]
"""A name that is also a safe file name."""


class Strict(BaseModel):
    """Base of every part of a recipe: unknown keys are errors, values are not coerced, instances do not change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class EngineSpec(Strict):
    """Which engine runs the models, and how it is started."""

    kind: EngineKind = Field(default="llama.cpp", description="Which engine; openai: an endpoint that runs already.")
    binary: str | None = Field(default=None, description="A path, or a name to be found on PATH.")
    device: Device = Field(default="auto", description="Where the models run; auto: what the engine chooses.")
    context: int = Field(default=4096, ge=64, le=10_000_000, description="Context length in tokens.")
    threads: int | None = Field(default=None, ge=1, le=1024, description="CPU threads of the engine; null: its cores.")
    args: list[str] = Field(default_factory=list, description="Passed through as they are, after benchctl's own.")
    env: dict[str, str] = Field(default_factory=dict, description="Added to the scrubbed environment. No secrets here.")
    health_timeout_s: float = Field(default=300.0, gt=0, le=7200, description="How long a start may take.")
    request_timeout_s: float = Field(default=600.0, gt=0, le=86400, description="How long one answer may take.")
    stall_timeout_s: float = Field(default=120.0, gt=0, le=7200, description="How long a stream may stay silent.")


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


class Speculation(Strict):
    """One setting of speculation in benchctl's words; each adapter maps them to the flags of the binary at hand."""

    type: SpeculationType | list[SpeculationType] = Field(description="A type, or several that work together.")
    max: int | None = Field(default=None, ge=1, le=MAX_DEPTH, description="Draft depth k: most draft tokens a round.")
    min: int | None = Field(default=None, ge=0, le=MAX_DEPTH, description="Fewest draft tokens worth verifying.")
    p_min: float | None = Field(default=None, ge=0, le=1, description="Drafting stops below this probability.")
    size_n: int | None = Field(default=None, ge=1, le=1024, description="n-gram types: length of the looked-up key.")
    size_m: int | None = Field(default=None, ge=1, le=1024, description="n-gram types: length of the copied draft.")
    min_hits: int | None = Field(default=None, ge=1, le=1024, description="n-gram types: hits before a draft is made.")

    @property
    def types(self) -> tuple[str, ...]:
        """The types as a tuple, whether one or several were named."""
        return (self.type,) if isinstance(self.type, str) else tuple(self.type)

    @property
    def uses_draft_model(self) -> bool:
        """Whether any of the types cannot work without a draft model."""
        return any(name in NEEDS_DRAFT_MODEL for name in self.types)


class Arm(Strict):
    """One concrete setting to be measured; `speculation` is null for a run of the target alone."""

    name: Name = Field(description="The arm's name, which is also its label in the records.")
    speculation: Speculation | None = Field(default=None, description="Null: the target alone.")
    args: list[str] = Field(default_factory=list, description="Further engine arguments of this arm alone.")


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


class Recipe(Strict):
    """A whole recipe with its matrices already expanded; `benchctl.recipes.load.load_recipe` makes one from a file."""

    name: Name = Field(description="The recipe's name; its runs are kept under it.")
    description: str | None = Field(default=None, description="What question the recipe answers.")
    engine: EngineSpec = EngineSpec()
    models: ModelPair
    prompts: PromptsSpec
    sampling: Sampling = Sampling()
    blocks: Blocks = Field(
        default=3,
        description="Fresh processes of each arm: the unit of replication. auto, or a mapping: as many as it takes.",
        examples=[3, "auto", {"half_width": 0.02, "max": 20, "budget_min": 30}],
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

    @property
    def first_blocks(self) -> int:
        """How many blocks are measured whatever they show."""
        return FIRST_LOOK if isinstance(self.blocks, AutoBlocks) else self.blocks

    def arm(self, name: str) -> Arm:
        """Return the arm called `name`; raises KeyError."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)
