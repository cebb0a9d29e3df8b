"""An EAGLE-3 draft for the sequential model: one Llama layer that reads three of the target's hidden states.

Names are those of published checkpoints (`fc`, `midlayer`, `norm`), the computation is that of llama.cpp's eagle3
graph without `norm_before_residual`; embeddings and output projection are the target's.
"""

from typing import Any

from torch import Tensor, cat, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from training.architectures.qwen3_5 import SequentialModel
from training.draft_attention import DraftKeys
from training.sequential import Heard, Reading, rotation

# Whose inputs the draft reads; the usual choice (2, half, 3 before the end) needs more than four layers.
TARGET_LAYERS = (1, 2, 3)


class _Attention(nn.Module):
    """The projections only: queries, keys and values of a token and a state side by side."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, inner = config.head_dim, 2 * config.hidden_size
        self.q_proj = nn.Linear(inner, config.num_attention_heads * width, bias=False)
        self.k_proj = nn.Linear(inner, config.num_key_value_heads * width, bias=False)
        self.v_proj = nn.Linear(inner, config.num_key_value_heads * width, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * width, config.hidden_size, bias=False)


class _Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)


class Eagle3Draft(nn.Module):
    """The draft; its own state before the last norm is what it reads when it drafts on."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(TARGET_LAYERS) * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = _Layer(config)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = LlamaRotaryEmbedding(config)

    def read(self, model: SequentialModel, heard: Heard) -> Reading:
        """Each token but the first, with the target's states of the position before."""
        inputs = cat([heard.states[layer] for layer in TARGET_LAYERS], -1)[:, :-1]
        return Reading(heard.logits[:, 1:], heard.embedded[:, 1:], inputs, rotation(self.rotary, inputs))

    def first(self, inputs: Tensor) -> Tensor:
        """The target's three states as one, (batch, length, hidden)."""
        fused: Tensor = self.fc(inputs)
        return fused

    def forward(
        self, embedded: Tensor, states: Tensor, turned: tuple[Tensor, Tensor], keys: DraftKeys
    ) -> tuple[Tensor, Tensor]:
        """The state to read in the next step, and the one to project on the vocabulary; both like `embedded`."""
        layer = self.midlayer
        attention = layer.self_attn
        joined = cat([layer.input_layernorm(embedded), layer.hidden_norm(states)], -1)
        shape = (*joined.shape[:2], -1, self.config.head_dim)
        query = attention.q_proj(joined).view(shape).transpose(1, 2)
        key = attention.k_proj(joined).view(shape).transpose(1, 2)
        value = attention.v_proj(joined).view(shape).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *turned)
        states = states + attention.o_proj(keys.attend(query, key, value).transpose(1, 2).flatten(2))
        states = states + layer.mlp(layer.post_attention_layernorm(states))
        return states, self.norm(states)


def eagle3(target: SequentialModel, *, feed_forward: int) -> Eagle3Draft:
    """An untrained draft, as wide as its target."""
    target_config = target.config
    # What the class does not declare is kept as an attribute and saved.
    undeclared: dict[str, Any] = {
        "draft_vocab_size": target_config.vocab_size,
        "target_hidden_size": target_config.hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(TARGET_LAYERS),
        "norm_before_residual": False,
    }
    config = LlamaConfig(
        **undeclared,
        architectures=["LlamaForCausalLMEagle3"],
        vocab_size=target_config.vocab_size,
        hidden_size=target_config.hidden_size,
        intermediate_size=feed_forward,
        num_hidden_layers=1,
        num_attention_heads=target_config.num_attention_heads,
        num_key_value_heads=target_config.num_key_value_heads,
        head_dim=target_config.head_dim,
        max_position_embeddings=target_config.max_position_embeddings,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=3,
    )
    return Eagle3Draft(config)
