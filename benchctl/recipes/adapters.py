"""What an adapter declares about its engine, and which engines there are: those that installed packages register.

An entry point of the group `benchctl.engines`, named as the recipe's `engine.kind`, points at an `Adapter`. The module
that holds it imports nothing of benchctl but `recipes`, `errors`, `text` and `paths`, since every recipe loads it; what
the declaration names as `module:attribute` is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_args

from benchctl.errors import UsageError
from benchctl.recipes.engine_spec import CachingEngineSpec, EngineSpec, LaunchedEngineSpec
from benchctl.recipes.options import read_flags
from benchctl.text import one_line

GROUP = "benchctl.engines"
OWN = "benchctl"
"""The package whose engines no other may replace."""
ModelFormat = Literal["gguf", "huggingface", "served"]
"""What an engine is given: GGUF files, a Hugging Face folder, or a name that an endpoint serves."""
SYNTHETIC = "synthetic acceptance"
"""What is lossy by design where draft tokens are accepted at random: the text is not a model's output."""
SyntheticRule = Callable[[Sequence[float]], tuple[list[str], dict[str, Any]]]
"""Writes rates of acceptance, by position and unconditional, as (engine arguments, keys of `speculation.options`)."""
InvariantRule = Callable[[Sequence[str], Mapping[str, str]], str | None]
"""Names, from the same, the setting under which the engine promises a token the same numbers in any batch."""
LossyRule = Callable[[Sequence[str], Mapping[str, str]], list[str]]
"""Names, from the exact command line and the variables that benchctl or the recipe set, what is lossy by design."""


def _nothing_lossy(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    del argv, env
    return []


@dataclass(frozen=True)
class Usual:
    """What an engine takes beside reading weights, in seconds, as it was measured; for a first estimate of a run."""

    start_s: float
    """A process: start, warm-up and stop."""
    step_s: float
    """A decode step."""


@dataclass(frozen=True)
class Adapter:
    """A kind of engine, declared."""

    spec: type[EngineSpec]
    """Its branch of the recipe's `engine`; `kind` is a `Literal` of its name. A `kind` with a default makes it the
    engine of recipes that name none."""
    engine: str
    """`module:class` of the `benchctl.engines.base.Engine`, called with the recipe's `engine` and `binary=`."""
    inventory: str
    """`module:function` that returns the `benchctl.engines.registry.FoundEngine`s of this machine, never none."""
    model_format: ModelFormat
    usual: Usual | None = None
    """`None`: not measured, so that a run's time is known after its first answers."""
    doctor: str | None = None
    """`module:function(engines, other_engines=)` that makes `benchctl.machine.doctor.Check`s of its engines that were
    found, for `benchctl engines doctor`; without it, an engine that is found is only listed there."""
    program: str | None = None
    """Its program's name on PATH, which a recipe may name without trust; another name may be any program there."""
    installer: str | None = None
    """`module:class` of a `benchctl.engines.registry.Installer`; `None` where benchctl installs no such engine."""
    converting_python: str | None = None
    """`module:function` that returns the Python that its installer made, where that has torch, transformers and
    sentencepiece and is there: llama.cpp's converter of safetensors runs by it."""
    endpoint: str | None = None
    """`module:attribute` of a `benchctl.engines.common.endpoint.ServerFamily`: how its server is recognised where it
    runs already behind an OpenAI-compatible endpoint; `None` where it has no such routes."""
    issue: str | None = None
    """`module:attribute` of a `benchctl.engines.common.issue_form.IssueForm`: what `benchctl report --format issue`
    fills in; `None` where the project has no such form."""
    line: str | None = None
    """`module:attribute` of a `benchctl.recipes.engine_line.LineForm`: how its own command lines are read as recipes;
    `None` where they are not."""
    own_methods: bool = False
    """Whether a speculation may be named by the engine's own method name, with its own keys in `options`."""
    lists_types: bool = False
    """Whether its program lists its speculation types within moments, so that `recipes check` asks it about a type that
    is none of benchctl's names."""
    speculation: str | None = None
    """`module:function` that returns a sentence for everything in a `benchctl.recipes.speculation.Speculation` that no
    version of the engine can do with any models; what depends on the version or the models is the engine's check."""
    pair: str | None = None
    """`module:function(recipe, target, draft)` that returns a sentence for each type that these files cannot have, by
    their headers: asked before an engine is sought and before files are hashed."""
    typed_options: bool = False
    """Whether it checks a speculation's own `options` by key and takes only numbers and switches. Otherwise they are
    words that are handed on, and need trust."""
    runs_code: frozenset[str] = frozenset()
    """Its own keys of `engine`, and types of speculation in lower case, that run code of the model's or the recipe's:
    they need trust."""
    interleaves: bool = False
    """Whether several of its processes may be up at once: `schedule: interleaved`."""
    quantizes: bool = False
    """Whether it brings programs that quantize: the keys `quantize`, and `benchctl isolate`."""
    lossy: LossyRule = _nothing_lossy
    batch_invariant: InvariantRule | None = None
    """Where it holds for an arm and its baseline, numeric noise explains no difference between their answers."""
    synthetic: SyntheticRule | None = None
    """How draft tokens are accepted at random; `None` where the engine cannot. For a binary that cannot,
    `has_synthetic` of `Capabilities.details` is false."""
    changes_target: frozenset[str] = frozenset()
    """Options, by their long names without dashes, that change what the target computes, where, or what is sampled of
    it: an arm may not have an option that its baseline has not."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of `changes_target` and `stated`, with the long name that each stands for."""
    stated: frozenset[str] = frozenset()
    """Options that have no effect, since every request of benchctl states them."""
    sampling: frozenset[str] = frozenset()
    """Which penalties, biases and grammars of `sampling` it takes: keys of `benchctl.recipes.schema.CONSTRAINTS`."""
    scored: frozenset[str] = frozenset()
    """Those of them that its scorer takes into account. With these, too, its scores show the target's own choice."""
    cache_types: tuple[str, ...] = ()
    """What `cache_type` may be; empty where the engine has no such choice."""
    cache_type_options: tuple[str, ...] = ()
    """The options of its command that set the target's, for reports of what ran."""
    draft_cache_types: bool = False
    """Whether the draft's KV cache may have another type than the target's."""
    truncates_first: bool = False
    """Whether its sampler takes top-k and top-p of the distribution before the temperature, not after it."""
    remembers: frozenset[str] = frozenset()
    """Types of speculation, as recipes write them, in lower case, that draft from the output of earlier requests of the
    same process."""
    reserves_device: bool = False
    """Whether a process takes a share of a GPU's memory at its start, whatever its models need."""
    repeats: bool = False
    """Whether a process answers the same request alike to the last bit whatever it was asked before: one at a time,
    greedy, without a cache, drafted alike."""
    reads_prompt_in_round: frozenset[str] = frozenset()
    """Types of speculation, as recipes write them, whose first round reads the prompt together with a draft, so that it
    may decide the first token otherwise than the baseline does by rounding."""
    dead_drafter: str = ""
    """Sentences on what left drafts of this engine without accepted tokens, with the threads that show it."""
    example: tuple[str, ...] = ()
    """Lines that `benchctl recipes new` writes below `engine`, keys or comments."""

    @property
    def kind(self) -> str:
        """Its name in recipes."""
        (word,) = get_args(self.spec.model_fields["kind"].annotation)
        return str(word)

    @property
    def default(self) -> bool:
        """Whether it runs recipes that name no kind."""
        return not self.spec.model_fields["kind"].is_required()

    @property
    def launched(self) -> bool:
        """Whether benchctl starts it; else it is an endpoint that runs already."""
        return issubclass(self.spec, LaunchedEngineSpec)


@dataclass(frozen=True)
class Registered:
    """The engines of this installation, the default first, then by name."""

    adapters: Mapping[str, Adapter]
    broken: Mapping[str, str]
    """Why a registered adapter cannot be used, by kind."""


@cache
def registered() -> Registered:
    """Load every registered adapter. Raises UsageError when not even benchctl's own are registered."""
    adapters: dict[str, Adapter] = {}
    broken: dict[str, str] = {}
    owners: dict[str, str] = {}
    packages = sorted((_package(entry) != OWN, _package(entry), entry) for entry in entry_points(group=GROUP))
    for _, package, entry in packages:  # benchctl's own first: no other package replaces them
        owner = owners.get(entry.name)
        if owner is not None:
            broken[entry.name] = f"{package} registers it too, and it belongs to {owner}"
            if owner != OWN:
                adapters.pop(entry.name, None)
            continue
        owners[entry.name] = package
        try:
            adapter = _loaded(entry)
            if adapter.default and package != OWN:
                raise TypeError("its `kind` has a default, which only a single engine has")
        except Exception as error:
            broken[entry.name] = f"{package} registers it, and it cannot be loaded: {one_line(repr(error), 200)}"
        else:
            adapters[entry.name] = adapter
    if not any(adapter.default for adapter in adapters.values()):
        raise UsageError(
            "benchctl's engines are not registered in this Python environment.",
            fix="Install benchctl again: `pip install` registers its engines.",
        )
    order = sorted(adapters.values(), key=lambda adapter: (not adapter.default, adapter.kind))
    return Registered({adapter.kind: adapter for adapter in order}, broken)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "a package without a name"


def _loaded(entry: EntryPoint) -> Adapter:
    adapter = entry.load()
    if not isinstance(adapter, Adapter):
        raise TypeError(f"{entry.value} is no Adapter")
    if adapter.kind != entry.name:
        raise TypeError(f"{entry.value} is registered as {entry.name} and declares {adapter.kind}")
    return adapter


def kinds() -> tuple[str, ...]:
    """Return the values that `engine.kind` may have."""
    return tuple(registered().adapters)


def adapter_of(kind: str) -> Adapter:
    """Return what declares the engine `kind`. Raises UsageError for an engine that is not registered."""
    engines = registered()
    if kind in engines.adapters:
        return engines.adapters[kind]
    reason = engines.broken.get(kind, "no installed package registers it")
    raise UsageError(
        f"The engine `{kind}` cannot run: {reason}.", where="engine.kind", fix=f"Known: {', '.join(kinds())}."
    )


def default_spec() -> EngineSpec:
    """Return the `engine` of a recipe that has none."""
    return next(iter(registered().adapters.values())).spec.model_validate({})


def target_settings(adapter: Adapter, args: Sequence[str]) -> dict[str, tuple[str, str | None]]:
    """Return (option as it is written, its value) by the long name of every option that changes the target."""
    settings: dict[str, tuple[str, str | None]] = {}
    for word, value in read_flags(args):
        name = adapter.aliases.get(word, word)
        for spelling in (name, name.removeprefix("no-")):
            if spelling in adapter.changes_target:
                settings[spelling] = (_as_written(args, word), f"{word.startswith('no-')} {value}")
    return settings


def without_effect(adapter: Adapter, args: Sequence[str]) -> list[str]:
    """Return the options, as they are written, that every request overrides."""
    names = [word for word, _ in read_flags(args) if adapter.aliases.get(word, word) in adapter.stated]
    return [_as_written(args, name) for name in names]


def _as_written(args: Sequence[str], word: str) -> str:
    return next(arg for arg in args if arg.lstrip("-").replace("_", "-").partition("=")[0] == word)


def kinds_with(flag: Callable[[Adapter], bool]) -> str:
    """Return the kinds of which `flag` is true, for a message."""
    return ", ".join(kind for kind, adapter in registered().adapters.items() if flag(adapter))


def lossy_settings(kind: str, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return what is lossy by design in a command line; empty when nothing is, or the engine is not installed here."""
    adapter = registered().adapters.get(kind)
    return [] if adapter is None else list(dict.fromkeys(adapter.lossy(argv, env)))


def batch_invariance(kind: str, argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Return the setting by which an engine promises a token the same numbers in any batch; `None` where none does."""
    adapter = registered().adapters.get(kind)
    return None if adapter is None or adapter.batch_invariant is None else adapter.batch_invariant(argv, env)


def reserves_device(kind: str) -> bool:
    """Whether an engine takes a share of a GPU's memory at its start, whatever its models need."""
    adapter = registered().adapters.get(kind)
    return adapter is not None and adapter.reserves_device


def reads_prompt_in_round(kind: str, types: Sequence[str]) -> bool:
    """Whether the first round of any of these types of speculation reads the prompt; so where the engine is unknown."""
    adapter = registered().adapters.get(kind)
    return adapter is None or not adapter.reads_prompt_in_round.isdisjoint(types)


def repeats(engine: EngineSpec, types: Sequence[str]) -> bool:
    """Whether an engine, drafting so, answers the same greedy request alike whatever it was asked before."""
    adapter = registered().adapters.get(engine.kind)
    caching = isinstance(engine, CachingEngineSpec) and engine.prefix_caching
    return adapter is not None and adapter.repeats and not caching and not remembers(engine.kind, types)


def remembers(kind: str, types: Sequence[str]) -> bool:
    """Whether any of these types of speculation remembers, from request to request of a process."""
    adapter = registered().adapters.get(kind)
    return adapter is not None and not adapter.remembers.isdisjoint(word.lower() for word in types)
