"""Falcon-H1's parallel hybrid: attention and a Mamba-2 mixer side by side in every layer.

Rules that llama.cpp sets: state 128 and head widths that are multiples of 16 (CUDA scan), rows of the target that are
multiples of 256 (K-quants), no norm inside the mixer (it gates before the norm, transformers after).
"""

import math
from typing import Any

import torch
from transformers import FalconH1Config, FalconH1ForCausalLM

from training import fast_scan


def parallel_hybrid(
    vocabulary: int, *, hidden: int, feed_forward: int, layers: int, heads: int, kv_heads: int
) -> FalconH1ForCausalLM:
    """An untrained model whose state-space part is as wide as the model: attention heads of 64, scan heads of 32."""
    fast_scan.install()
    scan_heads = hidden // 32
    # The two keywords that the class does not declare are kept as attributes and read by the model.
    undeclared: dict[str, Any] = {"head_dim": 64, "rope_theta": 10000.0}
    config = FalconH1Config(
        **undeclared,
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        mamba_d_ssm=hidden,
        mamba_n_heads=scan_heads,
        mamba_d_head=32,
        mamba_n_groups=1,
        mamba_d_state=128,
        mamba_d_conv=4,
        mamba_chunk_size=64,
        mamba_rms_norm=False,
        mamba_conv_bias=True,
        mamba_proj_bias=False,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        embedding_multiplier=1.0,
        lm_head_multiplier=1.0,
        key_multiplier=1.0,
        attention_in_multiplier=1.0,
        attention_out_multiplier=1.0,
        ssm_in_multiplier=1.0,
        ssm_out_multiplier=1.0,
        ssm_multipliers=[1.0] * 5,
        mlp_multipliers=[1.0, 1.0],
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=3,
    )
    model = FalconH1ForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            # Mamba-2's initialisation of the time step, log-uniform in 0.001 to 0.1; the library's is one constant.
            step = torch.exp(torch.rand(scan_heads) * math.log(100.0) + math.log(0.001))
            layer.mamba.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
            layer.mamba.A_log.copy_(torch.log(1 + 15 * torch.rand(scan_heads)))
            layer.mamba.D.fill_(1.0)
    return model
