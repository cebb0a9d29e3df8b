"""Which tensors llama-quantize quantizes, and which types they can take: what `quantize:` may request.

From `tensor_allows_quantization`, `tensor_type_fallback` and `tensor_requires_imatrix` in llama.cpp's
`src/llama-quant.cpp` (commit 0c1e570). The program prints nothing where it ignores a request; so the request is checked
here, and the file that was written is read back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from benchctl.errors import UsageError
from benchctl.models.gguf_header import Tensor, TensorType, tensor_types
from benchctl.recipes.problems import did_you_mean
from benchctl.recipes.quantization import tensor_regex
from benchctl.text import one_line

_LEFT_ALONE = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj"),
    *("ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "attn_rel_b.weight"),
    *(f"time_mix_{part}.weight" for part in ("first", "decay_w1", "decay_w2", "lerp_fused")),
    *(f"time_mix_{part}.weight" for part in ("w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2")),
    *(".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger"),
    *("a.rvq.codebook", "mm.a.code_embd"),
)
_EMBEDDED = ("position_embd.weight", "token_types.weight")
_NEEDS_IMPORTANCE = frozenset({"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs"})
_OF_BASE = {
    **{"q2_k_s": "q2_k", "q3_k_s": "q3_k", "q3_k_m": "q3_k", "q3_k_l": "q3_k", "q4_k_s": "q4_k", "q4_k_m": "q4_k"},
    **{"q5_k_s": "q5_k", "q5_k_m": "q5_k", "iq2_s": "iq2_xs", "iq2_m": "iq2_s", "iq3_xs": "iq3_s", "iq3_m": "iq3_s"},
    "mxfp4_moe": "mxfp4",
}
"""From `llama_ftype_get_default_type`, where the two names differ."""


def _named(name: str) -> TensorType:
    return next(kind for kind in tensor_types().values() if kind.name == name.lower())


def is_quantized(tensor: Tensor) -> bool:
    """Whether a tensor's type rounds in blocks; False for an unknown type."""
    kind = tensor_types().get(tensor.type_id)
    return kind is not None and kind.block > 1


def takes_other_type(tensor: Tensor) -> bool:
    """Whether llama-quantize gives this tensor another type at all; norms, biases and small tensors keep theirs."""
    named = tensor.name.endswith("weight") and tensor.name not in _EMBEDDED
    matrix = any(size > 1 for size in tensor.shape[1:])
    return matrix and named and not any(part in tensor.name for part in _LEFT_ALONE)


def family(name: str) -> str:
    """Return a tensor's name without block number and `.weight`: `ssm_out` for `blk.3.ssm_out.weight`."""
    return re.sub(r"^blk\.\d+\.", "", name).removesuffix(".weight")


def families(tensors: Sequence[Tensor]) -> list[str]:
    """Return the families of those tensors that can take another type, in file order."""
    return list(dict.fromkeys(family(tensor.name) for tensor in tensors if takes_other_type(tensor)))


def requested_types(tensors: Sequence[Tensor], overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the type that every overridden tensor must have; the first matching pattern counts. Raises UsageError."""
    types: dict[str, str] = {}
    for pattern, requested in overrides.items():
        matching = [tensor for tensor in tensors if re.search(tensor_regex(pattern), tensor.name)]
        assigned = [tensor for tensor in matching if takes_other_type(tensor) and tensor.name not in types]
        if not assigned:
            raise _without_effect(pattern, tensors, kept=bool(matching) and not any(map(takes_other_type, matching)))
        for tensor in assigned:
            _must_fit(tensor, _named(requested), pattern)
            types[tensor.name] = requested.lower()
    return types


def fallback_sentence(tensors: Sequence[Tensor], base: str, overrides: Mapping[str, str]) -> str | None:
    """Return what became of tensors of a written file whose rows do not fit the base type; None when all fit."""
    kind = _named(_OF_BASE.get(base.lower(), base.lower()))
    free = [tensor for tensor in tensors if takes_other_type(tensor)]
    requested = requested_types(tensors, overrides)
    unfit = [tensor for tensor in free if tensor.shape[0] % kind.block and tensor.name not in requested]
    fallbacks = [tensor for tensor in unfit if tensor.type_name != kind.name]
    if not fallbacks:
        return None
    kinds = ", ".join(dict.fromkeys(tensor.type_name for tensor in fallbacks))
    return (
        f"the rows of {len(fallbacks)} of {len(free)} tensors do not fit {base}, such as "
        f"{one_line(fallbacks[0].name, 60)} with {fallbacks[0].shape[0]} numbers; llama-quantize made them {kinds}"
    )


def _without_effect(pattern: str, tensors: Sequence[Tensor], *, kept: bool) -> UsageError:
    """Return the error for a pattern that changes nothing; `kept`: it matches only tensors that keep their type."""
    names = families(tensors)
    near = did_you_mean(pattern.removesuffix(".weight"), [*names, *(tensor.name for tensor in tensors)]).strip()
    if family(pattern) == "output" and "output" not in names and "token_embd" in names:
        return UsageError(
            "this model has no tensor `output`: its output is `token_embd` (tied embeddings)",
            where=f"quantize.tensors.{pattern}",
            fix="Write token_embd.",
        )
    if kept:
        return UsageError(
            f"the pattern '{pattern}' changes nothing: llama-quantize leaves norms, biases and small tensors alone",
            where=f"quantize.tensors.{pattern}",
            fix="Leave the pattern out.",
        )
    listed = f"Its tensors are named like: {', '.join(one_line(name, 60) for name in names[:20])}."
    return UsageError(
        f"the pattern '{pattern}' changes nothing: it matches no tensor that llama-quantize quantizes, or only tensors "
        "that an earlier pattern matches",
        where=f"quantize.tensors.{pattern}",
        fix="\n".join(filter(None, (near, listed))),
    )


def _must_fit(tensor: Tensor, requested: TensorType, pattern: str) -> None:
    name = one_line(tensor.name, 80)
    if requested.name in _NEEDS_IMPORTANCE and tensor.name not in {"token_embd.weight", "output.weight"}:
        reason, fix = "that type needs an importance matrix, which benchctl cannot make", "Use iq3_s or more, or q2_k."
    elif tensor.shape[0] % requested.block:
        rows = f"its rows have {tensor.shape[0]} numbers, which is no multiple of the type's block of {requested.block}"
        reason, fix = f"{rows}; llama-quantize would silently choose another type", "bf16 fits all rows."
    else:
        return
    raise UsageError(f"{name} cannot be made {requested.name}: {reason}", where=f"quantize.tensors.{pattern}", fix=fix)
