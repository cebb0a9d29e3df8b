"""Why llama-server ended or would not speculate: patterns of its log, each with a sentence and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchctl.engines.common.log import Reason, causes_in, first_reason

BROKEN_BUILD = (
    "Run `benchctl engines install llama.cpp`: what it builds is tried, and built again without the processor's "
    "instructions (AMX first) that crash. For a build of your own: --no-repack in engine.args, or compile it with "
    "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16."
)
_AMX = re.compile(r"\bAMX\b.* model buffer size")
_HOW_IT_ENDED = causes_in(
    r"""
^signal SIGILL$
    This llama-server has instructions that this processor lacks.
    Build it on this machine: `benchctl engines install llama.cpp`.
^signal SIG(SEGV|BUS|FPE)$
    llama-server crashed.
    Run `benchctl engines doctor`: it tries this llama-server with small quantized models.
"""
)
"""From `describe_exit`: the last line that `launch_cause` gets."""

_LAUNCH = causes_in(
    r"""
failed to load draft model, '(.*)'
    The draft model {0} could not be loaded.
    Check models.draft: the file must be there, whole, and a GGUF.
unknown model architecture: '(.*?)'
    This llama-server does not know the architecture {0}.
    Use a newer llama.cpp.
n_seq_max must be <= (\d+)
    This llama-server has {0} slots at most.
    Lower concurrency to that.
failed to allocate (?:\w+ )*buffer|cudaMalloc failed|out of memory|unable to allocate
    The engine ran out of memory.
    Lower engine.context, take a smaller quantization, or use a device with more memory.
error while handling argument "(\S+?)": (.*)
    llama-server refuses the value of {0}.
    Correct it in the recipe.
couldn't bind HTTP server socket
    The port is taken by another program.
    Run it again; another port is chosen.
model doesn't contain MTP layers|failed to create MTP context
    draft-mtp needs a target that carries an MTP head, and this one carries none.
    Use a target converted with its head (nextn layers), or name the head's file as models.draft.
DFlash model has no target_layer_ids
    draft-dflash and draft-dspark need a draft of their own kind, and models.draft is an ordinary model.
    Convert the DFlash draft that belongs to the target, or use draft-simple.
failed to remove sequence \d+ with p0=
    llama-server could not remove a rejected draft token, because one model of the pair keeps a recurrent state.
    With an attention-only target take a draft without a recurrent state, or an n-gram type.
batch must be large enough to hold the sampled and draft tokens
    The batch is smaller than a round of draft tokens.
    Raise -b to at least 1 + max.
GGML_ASSERT\((.*?)\) failed
    llama-server failed an assertion of its own: {0}.
    Report it to llama.cpp, with the engine's log.
error loading model: (.*)
    The model could not be loaded: {0}.
    See the engine's log.
"""
)

NOT_SPECULATING = causes_in(
    r"""
draft model vocab type must match|target and draft vocabs are not compatible|vocab_type_dft|draft model vocab .* match
    The draft's vocabulary is not the target's, so llama-server serves without speculation.
    Use a draft of the same tokenizer family, or an n-gram type, which needs no draft.
draft model is not eagle3
    draft-eagle3 was given an ordinary draft model, so llama-server serves without speculation.
    Name an EAGLE-3 GGUF made for this target as models.draft, or use draft-simple.
(draft-\w+|\w+) requires a draft context
    {0} was started without a draft model, so llama-server serves without speculation.
    Name models.draft in the recipe.
speculative decoding not supported by this context
    llama-server cannot roll back this target's state, so it serves without speculation.
    Use another target, or a newer llama.cpp.
failed to initialize speculative decoding context: (.*)
    llama-server could not initialise speculation: {0}.
    See the engine's log.
no implementations specified for speculative decoding
    llama-server found nothing to speculate with.
    A draft type needs a draft model (models.draft), and a draft model alone is not enough: it needs --spec-type.
"""
)


def launch_cause(log: Sequence[str]) -> Reason | None:
    """Return the first known reason why the engine ended; the log's last line may be how: `signal SIGSEGV`."""
    if log and log[-1] == "signal SIGSEGV" and any(_AMX.search(line) for line in log):
        return "This llama-server crashes in its code for AMX: it was miscompiled.", BROKEN_BUILD
    return first_reason(log, (*_LAUNCH, *_HOW_IT_ENDED))
