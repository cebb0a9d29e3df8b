"""Qwen3.5's dense hybrid: gated delta nets and gated full attention in turn, and a head that predicts one token more.

Rules that llama.cpp sets: attention and delta-net heads of 64, as many key as value heads (others are stored in another
order), convolution channels that are multiples of 128, rows that are multiples of 256 (K-quants).
"""

import math
from pathlib import Path

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from training.mtp import MultiTokenHead


class SequentialModel(Qwen3_5ForCausalLM):
    """transformers' model with its multi-token head, which transformers itself leaves out (`mtp.*` in a checkpoint)."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__(config)
        self.mtp = MultiTokenHead(config)
        self.post_init()

    def save_pretrained(self, save_directory: str | Path, **options: object) -> None:
        """Save under the published class's name."""
        super().save_pretrained(save_directory, **options)
        self.config.architectures = [Qwen3_5ForCausalLM.__name__]
        self.config.save_pretrained(save_directory)


def sequential(
    vocabulary: int, *, hidden: int, feed_forward: int, layers: int, heads: int, kv_heads: int
) -> SequentialModel:
    """An untrained model whose delta nets and attention are as wide as the model; every second layer is attention."""
    config = Qwen3_5TextConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=64,
        layer_types=["linear_attention", "full_attention"] * (layers // 2),
        linear_conv_kernel_dim=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_num_key_heads=hidden // 64,
        linear_num_value_heads=hidden // 64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=3,
    )
    config.full_attention_interval = 2
    config.mtp_num_hidden_layers = 1
    model = SequentialModel(config)
    with torch.no_grad():
        for layer in model.model.layers:
            if layer.block_type == "linear_attention":
                net = layer.linear_attn
                # The time step log-uniform in 0.001 to 0.1, as its authors do; the library's is one constant.
                step = torch.exp(torch.rand(net.num_v_heads) * math.log(100.0) + math.log(0.001))
                net.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
                net.A_log.copy_(torch.log(1 + 15 * torch.rand(net.num_v_heads)))
    return model
