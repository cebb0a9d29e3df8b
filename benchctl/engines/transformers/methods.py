"""The speculation types that the server has: for which architectures, with which options, and where each is.

Another is a file beside the others in `serving/drafters` and an entry here, or a package of its own that registers an
entry point. Imports nothing heavy: recipes are checked against this table before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Literal

Kind = Literal["parallel", "sequential", "attention", "whole"]
"""parallel: attention and recurrence side by side in every layer; sequential: each layer has either; attention:
every layer has attention alone; whole: keys and values are all that it remembers, and its parts are not known."""

_ALL: frozenset[Kind] = frozenset({"parallel", "sequential", "attention"})
_DRAFTERS = "benchctl.engines.transformers.serving.drafters"
_FIXED = f"{_DRAFTERS}.self_drafter"
_ASSISTED = "benchctl.engines.transformers.serving.assisted"


@dataclass(frozen=True)
class Architecture:
    """The names in transformers of the modules of a layer's parts. Several modules of an MLP are added up."""

    kind: Kind
    attention: tuple[str, ...] = ("self_attn",)
    recurrent: tuple[str, ...] = ()
    mlp: tuple[str, ...] = ("mlp",)
    in_tuple: bool = False
    """Whether a layer returns its hidden states in a tuple."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "falcon_h1": Architecture("parallel", recurrent=("mamba",), mlp=("feed_forward",), in_tuple=True),
    "qwen3_5_text": Architecture("sequential", recurrent=("linear_attn",)),
    "qwen3_5_moe_text": Architecture("sequential", recurrent=("linear_attn",)),
    "qwen3_next": Architecture("sequential", recurrent=("linear_attn",)),
    "granitemoehybrid": Architecture("sequential", recurrent=("mamba",), mlp=("shared_mlp", "block_sparse_moe")),
    "lfm2": Architecture("sequential", recurrent=("conv",), mlp=("feed_forward",)),
    "qwen2": Architecture("attention"),
    "qwen3": Architecture("attention"),
    "qwen3_moe": Architecture("attention"),
    "llama": Architecture("attention"),
    "mistral": Architecture("attention"),
    "olmo2": Architecture("attention"),
    "smollm3": Architecture("attention"),
    "granite": Architecture("attention"),
    "phi3": Architecture("attention"),
    "jamba": Architecture("sequential", recurrent=("mamba",), mlp=("feed_forward",)),
}
"""Those whose parts are known, all run by the tests; the self-test at load checks for each whether its state is kept
(Jamba's is not). Another is a line here."""


WHOLE = Architecture("whole")
"""Used for model types that are not listed: they run as a whole."""


@dataclass(frozen=True)
class Option:
    """A setting of a method: a number between bounds, a switch where `kind` is bool, whole numbers where it is list."""

    kind: type[int] | type[float] | type[bool] | type[list[int]]
    low: float = 0
    high: float = 1
    """Bounds, both allowed."""

    def problem(self, value: object) -> str | None:
        """Return what is wrong with a value, as the rest of a sentence."""
        bounds = f"from {self.low:g} to {self.high:g}"
        if self.kind is bool:
            return None if isinstance(value, bool) else "is true or false"
        if self.kind is list:
            fits = isinstance(value, list) and bool(value) and all(self._fits(number, int) for number in value)
            return None if fits else f"is a list of whole numbers {bounds}"
        if self._fits(value, int if self.kind is int else (int, float)):
            return None
        return f"is {'a whole number' if self.kind is int else 'a number'} {bounds}"

    def _fits(self, value: object, kinds: type | tuple[type, ...]) -> bool:
        return not isinstance(value, bool) and isinstance(value, kinds) and self.low <= value <= self.high  # type: ignore[operator]


@dataclass(frozen=True)
class Method:
    """A speculation type."""

    entry_point: str
    """`module:class` of its drafter, which is called with the decoder and the options."""
    kinds: frozenset[Kind] = _ALL
    lacking: str = ""
    """What other kinds of architectures lack, as the end of a sentence."""
    options: Mapping[str, Option] | None = field(default_factory=dict)
    """`None`: any, of numbers."""
    assisted: bool = False
    """Whether transformers' own assisted generation runs it. Its class then also gets the depth and the draft model."""
    draft: bool = False
    """Whether it needs models.draft."""
    adapter: bool = False
    """Whether models.draft holds an adapter, not a language model. The class then also gets its folder."""
    searches: bool = False
    """Whether it changes what it leaves out while it decodes."""
    keys: tuple[str, ...] = ()
    """Further keys of a recipe's speculation that it uses, beside `type`, `max` and `options`."""

    def unfit(self, model_type: str) -> str | None:
        """Return why an architecture cannot run it, as the end of a sentence."""
        kind = ARCHITECTURES.get(model_type, WHOLE).kind
        if kind in self.kinds:
            return None
        architectures = ", ".join(ARCHITECTURES)
        return (
            self.lacking
            if kind != "whole"
            else f"is of an architecture whose parts are not known; known: {architectures}"
        )


_OPTIONS: Mapping[str, Option] = {
    "skip": Option(float, 0.01, 0.99),
    "exit_layer": Option(int, 1, 10_000),
    **{name: Option(float) for name in ("confidence", "acceptance", "step", "enough")},
    **{name: Option(int, 1, 10_000) for name in ("interval", "patience")},
    "window": Option(int, 2, 512),
    "length": Option(int, 8, 1024),
    "tries": Option(int, 1, 100_000),
    "bayes": Option(int, 0, 10_000),
    "seed": Option(int, 0, 2**31),
    "decay": Option(float, 0.1, 1),
    "budgets": Option(int, 2, 256),
    "cosine": Option(float, -1, 1),
    "may_pause": Option(bool),
}
_LISTS = dict.fromkeys(("layers", "attention", "recurrent", "mlp"), Option(list, 0, 9_999))
"""Options that list layer numbers: these layers, or their parts, are left out."""


def _options(*names: str) -> dict[str, Option]:
    return {name: _OPTIONS[name] for name in names}


_assisted = partial(
    Method,
    kinds=frozenset({"attention", "whole"}),
    lacking="keeps a recurrent state, which transformers' assisted generation does not roll back",
    assisted=True,
)
METHODS: Mapping[str, Method] = {
    "self-ssm": Method(f"{_FIXED}:SelfRecurrent", frozenset({"parallel"}), "has no recurrence beside its attention"),
    "self-linear": Method(
        f"{_FIXED}:SelfRecurrent",
        frozenset({"sequential"}),
        "has no recurrent layers between attention layers",
        {"mlp": Option(bool)},
    ),
    "self-layerskip": Method(f"{_FIXED}:SelfLayerSkip", options=_options("skip")),
    "self-skip": Method(f"{_FIXED}:SelfSkip", options=_LISTS),
    "self-draft-verify": Method(
        f"{_DRAFTERS}.draft_verify:SelfDraftVerify",
        options=_LISTS | _options("confidence", "acceptance", "step", "tries", "length", "seed"),
    ),
    "self-early-exit": Method(f"{_FIXED}:SelfEarlyExit", options=_options("exit_layer")),
    "self-kangaroo": Method(
        f"{_DRAFTERS}.kangaroo:SelfKangaroo",
        frozenset({"attention"}),
        "has recurrent layers, and its adapter is defined for attention alone",
        _options("exit_layer", "confidence"),
        draft=True,
        adapter=True,
    ),
    "self-swift": Method(
        f"{_DRAFTERS}.swift:SelfSwift",
        options=_options("skip", "interval", "window", "bayes", "enough", "tries", "patience", "confidence", "seed"),
        searches=True,
    ),
    "self-clasp": Method(
        f"{_DRAFTERS}.clasp:SelfClasp", options=_options("skip", "interval", "confidence"), searches=True
    ),
    "self-del": Method(f"{_DRAFTERS}.dynamic_exit:SelfDel", options=_options("interval", "decay"), searches=True),
    "self-knapspec": Method(
        f"{_DRAFTERS}.knapspec:SelfKnapspec",
        options=_options("interval", "window", "budgets", "cosine", "confidence", "may_pause"),
        searches=True,
    ),
    "assisted": _assisted(f"{_ASSISTED}:Assisted", draft=True),
    "assisted-universal": _assisted(f"{_ASSISTED}:AssistedUniversal", draft=True),
    "prompt-lookup": _assisted(f"{_ASSISTED}:PromptLookup", keys=("size_n", "size_m")),
    "early-exit": _assisted(f"{_ASSISTED}:EarlyExit", kinds=frozenset({"attention"}), options=_options("exit_layer")),
}
"""Messages list them in this order."""
ALIASES: Mapping[str, str] = {"draft-simple": "assisted", "ngram-simple": "prompt-lookup"}
"""benchctl's own names, and the methods that they stand for."""
REFUSED: Mapping[str, str] = dict.fromkeys(
    ("draft-mtp", "mtp"),
    "transformers drafts with a multi-token head only for models without a recurrent state, and Qwen3.5 keeps a state",
)
"""Names of methods that this server cannot run, with the reason."""


GROUP = "benchctl.drafters"
"""Entry points of other packages: the name is the type in recipes, the value `module:class` of a drafter."""


@cache
def registered() -> Mapping[str, Method]:
    """Return every method, those that packages of this Python register after benchctl's own, which none replaces."""
    entries = {
        entry.name: Method(entry.value, options=None, searches=True)
        for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))
    }
    return {**METHODS, **{name: method for name, method in entries.items() if name not in {*METHODS, *ALIASES}}}


def method_of(name: str) -> str:
    """Return the name of a method by any of its names."""
    return ALIASES.get(name, name)
