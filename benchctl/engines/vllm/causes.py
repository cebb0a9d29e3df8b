"""Why vLLM ended: the root cause, which is seldom the log's last line, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchctl.engines.common.log import Cause, first_cause

_KNOWN = (
    Cause(r"unrecognized arguments: (.*)", "This vLLM has no option {0}.", "Correct engine.args or the arm's args."),
    Cause(r"argument (--\S+?)[:/].*?: (.*)", "vLLM refuses the value of {0}: {1}", "Correct it in the recipe."),
    Cause(
        r"Available memory on node .* is less than (requested memory for kv \([\d.]+ GiB\)|desired CPU memory)",
        "There is too little memory for vLLM's cache ({0}).",
        "Set VLLM_CPU_KVCACHE_SPACE (GiB) lower in engine.env, or free memory.",
    ),
    Cause(
        r"(?:CUDA out of memory|OutOfMemoryError|No available memory for the cache blocks)(.*)",
        "The GPU has too little memory.{0}",
        "Lower engine.context or --gpu-memory-utilization in engine.args, or take a smaller model.",
    ),
    Cause(r"Address already in use", "The port is taken by another program.", "Run it again; another port is chosen."),
    Cause(
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len(.*?)(?: or |\.|$)",
        "engine.context is {0}, more than the model was made for{1}.",
        "Lower engine.context.",
    ),
    Cause(
        r"(?:Repo id must be in the form .*|Invalid repository ID or local directory specified): '(.*?)'",
        "vLLM found no model in {0}.",
        "The folder must hold config.json and the weights.",
    ),
    Cause(
        r"LocalEntryNotFoundError|outgoing traffic has been disabled",
        "The model is not on this machine, and benchctl runs engines offline.",
        "Name a folder, or hf:ORG/REPO, which benchctl fetches itself.",
    ),
    Cause(
        r"Unsupported CPU attention configuration: (.*)",
        "vLLM's attention on a CPU does not know this model's shape ({0}).",
        "It needs heads of at least 32 dimensions; take another model, or a GPU.",
    ),
    Cause(
        r"CPU GDN attention requires BF16",
        "vLLM's gated delta net on a CPU is made for bfloat16 alone.",
        "Write `dtype: bfloat16` in engine.",
    ),
    Cause(
        r"Target and draft model should have the same vocabulary size\. (.*vocab_size=\d+)",
        "The draft's vocabulary is not the target's: {0}.",
        "Use a draft of the same tokenizer family, or an n-gram method.",
    ),
    Cause(
        r"All drafting layers should belong to the same kv cache group",
        "vLLM cannot draft with this model: its layers do not share one kind of cache.",
        "Take a draft of attention layers alone, or an n-gram method.",
    ),
    Cause(
        r"Arctic Inference is required for suffix decoding",
        "suffix decoding needs the package arctic-inference, and it is not installed.",
        "Install it in vLLM's own environment.",
    ),
    Cause(
        r"Unsupported speculative method: '(\w+)'",
        "vLLM has nothing that drafts with {0} for this target.",
        "Use a target that carries the head, or another method.",
    ),
    Cause(
        r"Following weights were not initialized from checkpoint: (.*)",
        "The draft is not a head of the requested kind: it lacks {0}",
        "Name the head that was made for this target as models.draft.",
    ),
    Cause(
        r"Model architectures \[(.*?)\] are not supported for now",
        "This vLLM cannot run a model of the class {0}.",
        "For a draft: name a head of the method's own kind; otherwise a newer vLLM may know it.",
    ),
    Cause(
        r"Model architecture (\S+) was supported in vLLM until (\S+),",
        "vLLM dropped {0} after {1}.",
        "Use that version.",
    ),
    Cause(
        r"Worker proc \S+ died unexpectedly \(exit code: (-?\d+)\)",
        "A worker process of vLLM died (exit code {0}).",
        "-9: it was killed, most often because memory ran out; else read the engine's log.",
    ),
    Cause(
        r"The size of tensor a \(\d+\) must match the size of tensor b \(\d+\)(.*)",
        "vLLM broke down on a draft shorter than its depth, as gated delta nets on a CPU do.{0}",
        "Use a method that always drafts to its full depth (draft-mtp).",
    ),
)
_VALIDATION = re.compile(r"validation errors? for (\S+)")
_PREFIX = re.compile(r"^(?:\([\w ]+pid=\d+\)\s*)?(?:[A-Z]+ [\d: -]+\[[^\]]*\]\s*)?")
_RAISED = re.compile(
    r"^(?:[\w.]*\.)?((?:Value|Runtime|Import|ModuleNotFound|NotImplemented|Assertion|OS|Type|Attribute|Key|Index|"
    r"FileNotFound)Error): (.+)"
)
_EMPTY = re.compile(
    r"^cancelled$|Engine core initialization failed|WorkerProc initialization failed|Worker failed with error"
)


def known_cause(log: Sequence[str]) -> tuple[str, str] | None:
    """Return (sentence, fix) for the first reason that has a pattern here."""
    found = first_cause(log, _KNOWN)
    return found and found[:2]


def launch_cause(log: Sequence[str]) -> tuple[str, str] | None:
    """Return (sentence, fix) for the first reason in the log's lines why vLLM ended; `None` when they show none."""
    if (known := known_cause(log)) is not None:
        return known
    lines = [_PREFIX.sub("", line).strip() for line in log]
    for number, line in enumerate(lines):
        if raised := _RAISED.match(line):
            if not _EMPTY.search(raised[2]):
                return f"{raised[1]}: {raised[2][:300]}", "Read the engine's log."
        elif _VALIDATION.search(line):
            message = " ".join(text for text in lines[number + 1 : number + 3] if text)
            return f"vLLM refuses its configuration: {message[:300]}", "Correct the recipe."
    # What is left where the executor was torn down before its monitor named the worker that is gone.
    if any(line.endswith("RuntimeError: cancelled") for line in lines):
        return (
            "A worker process of vLLM died; its log does not show why.",
            "It may have been killed, most often because memory ran out; else read the engine's log.",
        )
    return None
