"""Qwen3's plain transformer, the control without any recurrent state: attention with normed queries and keys."""

from transformers import Qwen3Config, Qwen3ForCausalLM


def transformer(
    vocabulary: int, *, hidden: int, feed_forward: int, layers: int, heads: int, kv_heads: int
) -> Qwen3ForCausalLM:
    """An untrained model with attention heads of 64; rows are multiples of 256 (K-quants) if the sizes are."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=feed_forward,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=64,
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=2,
            pad_token_id=3,
        )
    )
