"""Train a DFlash or DSpark head for the bundled transformer, as the GGUF file that llama.cpp reads.

    python -m training.flash dflash [FOLDER]

Both draft a block in one pass: a token that the target has chosen, then masks, over keys and values that are made of
the target's own states up to it. DFlash reads every token off its own mask. DSpark's first slot is the chosen token
itself, so that slot i says token i + 1, and a low-rank (Markov) term adds what the token before says. The computation
is that of llama.cpp's `src/models/dflash.cpp`. Text: our generators' exchanges, of combinations that no suite uses;
labels: the target's own choices within answers. `--steps 0` writes the untrained head, which the trained one must beat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config, Qwen3MLP, Qwen3RMSNorm, apply_rotary_pos_emb

from benchctl.models.huggingface.folder import to_bfloat16
from training.export import add_general_facts, add_hyperparameters, add_tensors, add_tokenizer
from training.gguf_metadata import metadata_of
from training.heads import batches, descend, frozen_target, read_options
from training.objective import weights
from training.schedule import assistant_token

READ_LAYERS = (0, 1, 2)
"""Whose outputs the head reads; llama.cpp hands out the inputs of layers, so the last layer's cannot be among them."""
_NAMES = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
}
OF_LAYERS = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    **{f"self_attn.{part}_proj.weight": f"attn_{part}.weight" for part in "qkv"},
    **{f"self_attn.{part}_norm.weight": f"attn_{part}_norm.weight" for part in "qk"},
    **{f"mlp.{part}_proj.weight": f"ffn_{part}.weight" for part in ("gate", "up", "down")},
}
"""Names of `gguf-py`'s tensor map for the architecture `dflash`."""
BLOCK, MASK, RANK, LAYERS = 8, 3, 64, 2
"""Tokens of a block, the token that stands for a mask (padding), the Markov term's rank, the head's own layers."""


class Attention(nn.Module):
    """Attention of blocks to the states before them and to themselves, in both directions."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        width = config.head_dim
        self.width, self.groups = width, config.num_attention_heads // config.num_key_value_heads
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * width, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * width, config.hidden_size, bias=False)
        self.q_norm = Qwen3RMSNorm(width, config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(width, config.rms_norm_eps)

    def forward(self, block: Tensor, read: Tensor, turned: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """(batch, block tokens, hidden); `turned` and `seen` are over what was read, then the block's tokens."""
        context = torch.cat([read, block], 1)
        shape = (*context.shape[:2], -1, self.width)
        keys = self.k_norm(self.k_proj(context).view(shape)).transpose(1, 2)
        values = self.v_proj(context).view(shape).transpose(1, 2)
        queries = self.q_norm(self.q_proj(block).view(*block.shape[:2], -1, self.width)).transpose(1, 2)
        cosine, sine = turned
        first = read.shape[1]
        queries, _ = apply_rotary_pos_emb(queries, queries, cosine[:, first:], sine[:, first:])
        keys, _ = apply_rotary_pos_emb(keys, keys, cosine, sine)
        keys, values = (part.repeat_interleave(self.groups, 1) for part in (keys, values))
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask[:, None])
        mixed: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return mixed


class Layer(nn.Module):
    """One layer, as Qwen3's but for what it attends to."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Qwen3MLP(config)

    def forward(self, block: Tensor, read: Tensor, turned: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """The block's states after this layer."""
        block = block + self.self_attn(self.input_layernorm(block), read, turned, mask)
        after: Tensor = block + self.mlp(self.post_attention_layernorm(block))
        return after


class Markov(nn.Module):
    """What the token before says of the next one, in low rank; it begins at zero."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocabulary, RANK)
        self.markov_w2 = nn.Linear(RANK, vocabulary, bias=False)
        nn.init.zeros_(self.markov_w2.weight)


class Head(nn.Module):
    """A DFlash head, or with `anchored` a DSpark head."""

    def __init__(self, target: Qwen3ForCausalLM, anchored: bool) -> None:
        super().__init__()
        config = target.config
        self.fc = nn.Linear(len(READ_LAYERS) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(config) for _ in range(LAYERS)])
        self.norm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        if anchored:
            self.markov_head = Markov(config.vocab_size)
        self.norm.load_state_dict(target.model.norm.state_dict())  # the output projection is the target's
        self.anchored = anchored

    def loss(self, target: Qwen3ForCausalLM, rows: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy in nats of the target's choices in blocks, and the share of right tokens by slot.

        `rows` (batch, length), `starts` (batch, blocks): where the blocks begin.
        """
        with torch.no_grad():
            heard = target.model(rows, output_hidden_states=True, use_cache=False)
            choices = target.lm_head(heard.last_hidden_state).argmax(-1)
        read = self.hidden_norm(self.fc(torch.cat([heard.hidden_states[layer + 1] for layer in READ_LAYERS], -1)))
        slots = torch.arange(BLOCK)
        places = (starts[..., None] + slots).flatten(1)  # (batch, blocks · BLOCK)
        tokens = torch.where(slots.repeat(starts.shape[1]) == 0, rows.gather(1, places), MASK)
        block_of = torch.arange(starts.shape[1]).repeat_interleave(BLOCK)
        before = torch.arange(rows.shape[1])[None, None] < starts.repeat_interleave(BLOCK, 1)[..., None]
        same_block = (block_of[:, None] == block_of[None]).expand(len(rows), -1, -1)
        positions = torch.cat([torch.arange(rows.shape[1]).expand_as(rows), places], 1)
        turned = target.model.rotary_emb(read, positions)
        block = target.model.embed_tokens(tokens)
        for layer in self.layers:
            block = layer(block, read, turned, torch.cat([before, same_block], 2))
        ahead = 1 if self.anchored else 0
        wanted = choices.gather(1, places + ahead - 1)  # the target's choice for the token at this place + ahead
        logits = target.lm_head(self.norm(block))
        if self.anchored:
            logits = logits + self.markov_head.markov_w2(self.markov_head.markov_w1(rows.gather(1, places)))
        used = slots.repeat(starts.shape[1]) >= 1 - ahead
        losses = F.cross_entropy(logits[:, used].flatten(0, 1), wanted[:, used].flatten())
        right = (logits.argmax(-1) == wanted).float().view(len(rows), -1, BLOCK).mean((0, 1))[1 - ahead :]
        return losses, right


def train(head: Head, target: Qwen3ForCausalLM, folder: Path, steps: int, seed: int) -> None:
    """Train for so many steps. Prints the share of right tokens by slot."""
    chosen = torch.Generator().manual_seed(seed)
    assistant = assistant_token(folder)

    def loss_of(rows: Tensor) -> tuple[Tensor, Callable[[], str]]:
        answered = weights(rows, 0.0, assistant)[:, : -BLOCK - 1] + 1e-6
        starts = 1 + torch.multinomial(answered, 16, generator=chosen)
        loss, right = head.loss(target, rows, starts)
        return (
            loss,
            lambda: f"{loss.item():.3f} nats, right by slot {', '.join(f'{share:.0%}' for share in right.tolist())}",
        )

    descend([head], batches(folder, 192, 4, seed), steps, loss_of)


def write(head: Head, target: Path, path: Path) -> None:
    """Write the head as the GGUF file that llama.cpp reads, with the vocabulary of the target's folder."""
    config = json.loads((target / "config.json").read_text("utf-8"))
    facts: dict[str, Any] = dict(metadata_of("qwen3", config)) | {
        "block_count": LAYERS,
        "block_size": BLOCK,
        "target_layers": [layer + 1 for layer in READ_LAYERS],  # whose inputs are these layers' outputs
    }
    if head.anchored:
        facts |= {"sample_from_anchor": True, "has_confidence_head": False}
    tensors = {in_gguf(name): value.detach().numpy() for name, value in head.state_dict().items()}
    fresh = path.with_suffix(".new")
    writer = gguf.GGUFWriter(fresh, "dflash")
    parameters = sum(value.size for value in tensors.values())
    add_general_facts(writer, path.stem, "A draft head for tiny-transformer, to try benchctl with.", parameters)
    add_hyperparameters(writer, "dflash", facts)
    add_tokenizer(writer, target)
    writer.add_mask_token_id(MASK)
    add_tensors(writer, {name: value if value.ndim == 1 else to_bfloat16(value) for name, value in tensors.items()})
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fresh.replace(path)


def in_gguf(name: str) -> str:
    """Return a tensor's name in the file, from the published name."""
    layer = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
    return f"blk.{layer[1]}.{OF_LAYERS[layer[2]]}" if layer else _NAMES[name]


def main() -> None:
    """Read the options, train and write."""
    options = read_options(__doc__, "KIND.gguf", 1200, ("dflash", "dspark"))
    options.folder.mkdir(parents=True, exist_ok=True)
    folder, target = frozen_target(options.seed)
    head = Head(target, anchored=options.kind == "dspark")
    train(head, target, folder, options.steps, options.seed)
    write(head, folder, options.folder / f"{options.kind}.gguf")
    print(f"benchctl run tiny-{options.kind} --models-dir {options.folder}")


if __name__ == "__main__":
    main()
