"""How a command line of llama-server is read as a recipe."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.engines.llama_cpp.adapter import ADAPTER
from benchctl.engines.llama_cpp.command import RESERVED
from benchctl.engines.llama_cpp.probe import OWN_NAMES
from benchctl.engines.llama_cpp.spec_flags import FLAG_TABLE
from benchctl.recipes.engine_line import EngineLine, LineForm, options
from benchctl.recipes.speculation import COPIES

_FILE = "models.target.source (its file)"
_SLOTS = "left out, concurrency says how many requests are in flight"
_KEYS = f"""
models.target.source: -m --model -mu --model-url
models.target.source=hf:{{}}: -hf -hfr --hf-repo
{_FILE}: -hff --hf-file
models.draft.source: -md --model-draft --spec-draft-model
models.draft.source=hf:{{}}: -hfd -hfrd --hf-repo-draft --spec-draft-hf
engine.context: -c --ctx-size
engine.threads: -t --threads
{_SLOTS}: -np --parallel
speculation.type: --spec-type
speculation.max: --draft --draft-n
"""
_SET = "benchctl sets it"
_LEFT_OUT = f"""
{_SET}: -a --alias --no-webui --webui --no-ui --ui --props -lv --verbosity -v --verbose --log-verbosity --jinja
answers are measured without a cache (engine.prefix_caching): -cram --cache-ram --cache-prompt --cache-reuse
nothing is fetched while it is measured: --offline
the draft takes the target's context: -cd --ctx-size-draft --spec-draft-ctx-size
benchctl asks its own prompts (--prompts): -p --prompt -f --file -sys -cnv -no-cnv --color -co -i --interactive
"""
_SWITCHES = "no-mmap mlock swa-full check-tensors cpu-moe no-webui metrics props embeddings reranking no-kv-offload"
_TWO_WAYS = (
    "cont-batching context-shift jinja kv-offload kv-unified mmproj-offload op-offload repack slots webui warmup"
)
_UNIFIED, _DIVIDED = ("-kvu", "--kv-unified"), ("-no-kvu", "--no-kv-unified")
_STATED = "each request states it (sampling; greedy where --set does not change it)"
_NO_TEXT = "A server that is started so generates no text, and nothing can be measured."
_KEY = "A key must not stand in a line, which is recorded."


def _speculation_keys() -> dict[str, str]:
    rows = [row.split() for row in FLAG_TABLE.strip().splitlines()]
    flags = {
        (name.format(kind), key)
        for _, key, *cells in rows
        for cell in cells
        for name in cell.split(",")
        for kind in COPIES
    }
    return {name: f"speculation.{key}" for name, key in sorted(flags, reverse=True)}


def _is_unified(args: Sequence[str]) -> bool:
    """Whether all slots share one KV cache, of which each may use the whole context."""
    last = next((word for word in reversed(args) if word in _UNIFIED + _DIVIDED), None)
    return last in _UNIFIED


def _settle(line: EngineLine) -> None:
    """Choose the file of a repository, divide the context among slots, and name the type that a draft model means."""
    values = line.values
    source, file = values.get("models.target.source"), values.pop(_FILE, None)
    if file is not None and source is not None:
        values["models.target.source"] = "/".join([":".join(str(source).split(":")[:2]), str(file)])
    slots, context = values.pop(_SLOTS, 1), values.get("engine.context")
    if context == 0:
        del values["engine.context"]
        line.destinations.append(("-c 0", "left out: a benchmark has a fixed context (--set engine.context=8192)"))
    elif isinstance(context, int) and isinstance(slots, int) and slots > 1 and not _is_unified(line.args):
        values["engine.context"] = context // slots
        line.destinations.append((f"-c {context} -np {slots}", f"engine.context: {context // slots} a slot"))
    kind = values.get("speculation.type")
    if isinstance(kind, str):
        names = [OWN_NAMES.get(name, name) for name in kind.split(",") if name != "none"]
        values["speculation.type"] = names[0] if len(names) == 1 else names
        if not names:
            del values["speculation.type"]
    elif "models.draft.source" in values:
        values["speculation.type"] = "draft-simple"
        line.destinations.append(("(a draft model)", "arms[].speculation.type: draft-simple"))


LINE = LineForm(
    programs=("llama-server", "llama.cpp", "llama-cli", "llama-speculative", "llama-speculative-simple"),
    keys=_speculation_keys() | options(_KEYS),
    left_out={name: _SET for name, instead in RESERVED.items() if "(benchctl" in instead}
    | {f"{dashes}{name}": _STATED for name in ADAPTER.stated for dashes in ("-", "--")}
    | options(_LEFT_OUT),
    refused=options(f"{_NO_TEXT}: --embedding --embeddings --rerank --reranking\n{_KEY}: --api-key --hf-token -hft"),
    settle=_settle,
    variables="LLAMA_ARG_",
    switches={f"--{name}": "" for name in _SWITCHES.split()}
    | {f"--{name}": f"--no-{name}" for name in _TWO_WAYS.split()},
    variable_names={
        "LLAMA_ARG_N_PARALLEL": "--parallel",
        "LLAMA_ARG_BATCH": "--batch-size",
        "LLAMA_ARG_UBATCH": "--ubatch-size",
        "LLAMA_ARG_SPEC_DRAFT_HF_REPO": "--spec-draft-hf",
        "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K": "--cache-type-k-draft",
        "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V": "--cache-type-v-draft",
        "LLAMA_ARG_ROPE_SCALING_TYPE": "--rope-scaling",
        "LLAMA_ARG_ENDPOINT_METRICS": "--metrics",
        "LLAMA_ARG_ENDPOINT_PROPS": "--props",
        "LLAMA_ARG_ENDPOINT_SLOTS": "--slots",
        "LLAMA_ARG_THINK": "--reasoning-format",
        "LLAMA_ARG_THINK_BUDGET": "--reasoning-budget",
    },
)
