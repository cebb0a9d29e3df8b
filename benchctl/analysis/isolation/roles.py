"""What the families of tensors do in a model, in a few words; llama.cpp's names are the same in every architecture."""

from __future__ import annotations

_ROLES = {
    "token_embd": "token embedding",
    "output": "output head",
    "attn_q": "attention query",
    "attn_k": "attention key",
    "attn_v": "attention value",
    "attn_qkv": "attention query, key and value",
    "attn_output": "attention output",
    "attn_gate": "attention gate",
    "attn_q_a": "attention query, compressed",
    "attn_q_b": "attention query, restored",
    "attn_kv_a_mqa": "attention key and value, compressed",
    "attn_kv_b": "attention key and value, restored",
    "ffn_gate": "feed-forward gate",
    "ffn_up": "feed-forward up",
    "ffn_down": "feed-forward down",
    "ffn_gate_exps": "experts' gate",
    "ffn_up_exps": "experts' up",
    "ffn_down_exps": "experts' down",
    "ffn_gate_shexp": "shared expert's gate",
    "ffn_up_shexp": "shared expert's up",
    "ffn_down_shexp": "shared expert's down",
    "ssm_in": "recurrent input",
    "ssm_out": "recurrent output",
    "ssm_x": "recurrent parameters",
    "ssm_dt": "recurrent step size",
    "ssm_alpha": "recurrent decay",
    "ssm_beta": "recurrent write strength",
    "ssm_ba": "recurrent decay and write strength",
}


def role(family: str) -> str | None:
    """Return what a family does; `None` for one that is not known here."""
    return _ROLES.get(family)
