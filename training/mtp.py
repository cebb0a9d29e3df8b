"""Qwen3.5's multi-token head: from a token and the target's last state of the position before to the token after it.

The names are those of the published checkpoints (`mtp.fc`, `mtp.layers.0`, ...), the computation is that of llama.cpp's
`LLM_GRAPH_TYPE_DECODER_MTP` graph for qwen35: the state is the target's *after* its final norm, and further tokens are
drafted from the head's own output after `mtp.norm`.
"""

from torch import Tensor, cat, chunk, nn
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm, apply_rotary_pos_emb

from training.draft_attention import DraftKeys


class MultiTokenHead(nn.Module):
    """One full-attention layer; embedding and output projection are the target's."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(config, config.layer_types.index("full_attention"))])
        self.norm = Qwen3_5RMSNorm(config.hidden_size, config.rms_norm_eps)

    def first(self, inputs: Tensor) -> Tensor:
        """The target's states, as they are."""
        return inputs

    def forward(
        self, embedded: Tensor, states: Tensor, turned: tuple[Tensor, Tensor], keys: DraftKeys
    ) -> tuple[Tensor, Tensor]:
        """The state to read in the next step, and to project on the vocabulary: the same, twice; like `embedded`.

        `embedded` (batch, length, hidden) are the tokens, `states` likewise the states of the positions before,
        `turned` the target's rotary cosine and sine of all positions.
        """
        layer = self.layers[0]
        attention = layer.self_attn
        joined = self.fc(cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(states)], -1))
        inner = layer.input_layernorm(joined)
        batch, length, _ = inner.shape
        shape = (batch, length, -1, attention.head_dim)
        query, gate = chunk(attention.q_proj(inner).view(batch, length, -1, 2 * attention.head_dim), 2, dim=-1)
        query = attention.q_norm(query).transpose(1, 2)
        key = attention.k_norm(attention.k_proj(inner).view(shape)).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *turned)
        value = attention.v_proj(inner).view(shape).transpose(1, 2)
        heard = keys.attend(query, key, value).transpose(1, 2).flatten(2)
        joined = joined + attention.o_proj(heard * gate.flatten(2).sigmoid())
        ahead = self.norm(joined + layer.mlp(layer.post_attention_layernorm(joined)))
        return ahead, ahead
