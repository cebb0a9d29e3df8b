"""Train an EAGLE, an EAGLE-3, a Medusa and an MTP head for the bundled transformer, in the layouts that vLLM reads.

    python -m training.vllm_heads [FOLDER]

All read the frozen target's states and learn its distribution, the first, second and fourth for several drafted tokens
in a row; they are trained together, since running the target is much of the work. Names of tensors are those of
published checkpoints, the computation is that of vLLM's `llama_eagle`, `llama_eagle3`, `medusa` and `glm4_moe_mtp`.
FOLDER/dflash.gguf (`training.flash`) is written as a folder, too. Text as for `training.heads`. `--steps 0` writes
untrained heads, which the trained ones must beat.

vLLM drafts with an MTP head for models of a few classes only, of which GLM-4.5 fits: attention and norms are Qwen3's,
the last layer is a mixture. So `mtp` holds target and head as GLM-4.5, the target's own last layer as the shared expert
of a mixture whose routed experts add nothing: the same function, by other names.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config, Qwen3RMSNorm, apply_rotary_pos_emb

from benchctl.models.huggingface.folder import from_bfloat16, to_bfloat16, write_weights
from training.draft_attention import DraftKeys
from training.eagle3 import eagle3
from training.flash import BLOCK, LAYERS, MASK, OF_LAYERS, READ_LAYERS, Layer, in_gguf
from training.heads import batches, descend, frozen_target, read_options
from training.objective import weights
from training.schedule import assistant_token
from training.sequential import Heard, Reading, distilled, hear, rotation

IN_A_ROW = 3
"""Tokens drafted in a row while training."""
MEDUSA_HEADS = 4
EXPERTS = 2
"""Routed experts of a mixture, all zero; vLLM chooses groups by the best two."""


class DraftLayer(Layer):
    """A layer of Qwen3, or with `llama` one of Llama without its first norm, that attends to what a draft has seen."""

    def __init__(self, config: Qwen3Config, *, llama: bool) -> None:
        super().__init__(config)
        if llama:
            self.input_layernorm = self.self_attn.q_norm = self.self_attn.k_norm = nn.Identity()

    def forward(self, states: Tensor, turned: tuple[Tensor, Tensor], keys: DraftKeys) -> Tensor:  # type: ignore[override]
        """The states after this layer, (batch, length, hidden)."""
        attention, inner = self.self_attn, self.input_layernorm(states)
        shape = (*inner.shape[:2], -1, attention.width)
        query = attention.q_norm(attention.q_proj(inner).view(shape)).transpose(1, 2)
        key = attention.k_norm(attention.k_proj(inner).view(shape)).transpose(1, 2)
        value = attention.v_proj(inner).view(shape).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *turned)
        states = states + attention.o_proj(keys.attend(query, key, value).transpose(1, 2).flatten(2))
        after: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return after


class Eagle(nn.Module):
    """EAGLE: predicts the target's next last state, of which the target's own output projection makes a token."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([DraftLayer(config, llama=True)])

    def read(self, target: Qwen3ForCausalLM, heard: Heard) -> Reading:
        """Each token but the first, with the target's last state of the position before."""
        inputs = heard.states[-1][:, :-1]
        return Reading(heard.logits[:, 1:], heard.embedded[:, 1:], inputs, rotation(target.model.rotary_emb, inputs))

    def first(self, inputs: Tensor) -> Tensor:
        """The target's states, as they are."""
        return inputs

    def forward(
        self, embedded: Tensor, states: Tensor, turned: tuple[Tensor, Tensor], keys: DraftKeys
    ) -> tuple[Tensor, Tensor]:
        """The state to read in the next step, and to project on the vocabulary: the same, twice; like `embedded`."""
        ahead = self.layers[0](self.fc(torch.cat([embedded, states], -1)), turned, keys)
        return ahead, ahead


class MultiTokenLayer(nn.Module):
    """GLM-4.5's head: a layer like the target's over a normed token and a normed state."""

    def __init__(self, target: Qwen3ForCausalLM) -> None:
        super().__init__()
        config = target.config
        self.enorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.block = DraftLayer(config, llama=False)
        self.norm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm.load_state_dict(target.model.norm.state_dict())  # the output projection is the target's

    def read(self, target: Qwen3ForCausalLM, heard: Heard) -> Reading:
        """As EAGLE does, but that vLLM hides the token of the first position."""
        inputs = heard.states[-1][:, :-1]
        embedded = heard.embedded[:, 1:].clone()
        embedded[:, 0] = 0
        return Reading(heard.logits[:, 1:], embedded, inputs, rotation(target.model.rotary_emb, inputs))

    def first(self, inputs: Tensor) -> Tensor:
        """The target's states, as they are."""
        return inputs

    def forward(
        self, embedded: Tensor, states: Tensor, turned: tuple[Tensor, Tensor], keys: DraftKeys
    ) -> tuple[Tensor, Tensor]:
        """The state to read in the next step, and its norm, to project on the vocabulary; like `embedded`."""
        joined = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(states)], -1))
        ahead = self.block(joined, turned, keys)
        return ahead, self.norm(ahead)


class Residual(nn.Module):
    """A layer of a Medusa head; it begins as the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width, bias=False)])
        nn.init.zeros_(self.layers[0].weight)

    def forward(self, states: Tensor) -> Tensor:
        """Like `states`."""
        return states + F.silu(self.layers[0](states))


class Medusa(nn.Module):
    """Medusa: head i says, of the target's last state, the token i + 2 positions on."""

    def __init__(self, target: Qwen3ForCausalLM) -> None:
        super().__init__()
        config = target.config
        self.blocks = nn.ModuleList([Residual(config.hidden_size) for _ in range(MEDUSA_HEADS)])
        self.lm_heads = nn.ModuleList(
            [nn.Linear(config.hidden_size, config.vocab_size, bias=False) for _ in range(MEDUSA_HEADS)]
        )
        for projection in self.lm_heads:
            projection.load_state_dict(target.lm_head.state_dict())

    def loss(self, heard: Heard, weight: Tensor) -> Tensor:
        """Cross-entropy in nats with the target's distribution, mean over the heads; `weight` (batch, length)."""
        total = torch.zeros(())
        for ahead, (block, projection) in enumerate(zip(self.blocks, self.lm_heads, strict=True), start=1):
            guess = projection(block(heard.states[-1][:, :-ahead])).float().flatten(0, 1)
            wanted = heard.logits[:, ahead:].float().softmax(-1).flatten(0, 1)
            counted = weight[:, ahead:].flatten()
            total = total + (F.cross_entropy(guess, wanted, reduction="none") * counted).sum() / counted.sum()
        return total / MEDUSA_HEADS


def made(target: Qwen3ForCausalLM) -> nn.ModuleDict:
    """All heads, untrained, by name."""
    return nn.ModuleDict(
        {
            "eagle": Eagle(target.config),
            "eagle3": eagle3(target, feed_forward=target.config.intermediate_size),
            "mtp": MultiTokenLayer(target),
            "medusa": Medusa(target),
        }
    )


def train(heads: nn.ModuleDict, target: Qwen3ForCausalLM, folder: Path, steps: int, seed: int) -> None:
    """Train for so many steps. Prints the loss of each head in nats."""
    assistant = assistant_token(folder)

    def loss_of(rows: Tensor) -> tuple[Tensor, Callable[[], str]]:
        weight = weights(rows, 0.05, assistant)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                heard = hear(target, rows[:, :-1])
            losses = {
                name: head.loss(heard, weight)
                if name == "medusa"
                else distilled(target, head, head.read(target, heard), weight, IN_A_ROW)
                for name, head in heads.items()
            }
        return torch.stack(list(losses.values())).sum(), lambda: str(
            {name: round(loss.item(), 3) for name, loss in losses.items()}
        )

    descend(list(heads.values()), batches(folder, 192, 2, seed), steps, loss_of, warm_up=20, report_every=50)


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a model folder in bfloat16, its configuration last."""
    folder.mkdir(parents=True, exist_ok=True)
    weights_file = folder / "model.safetensors"
    write_weights(weights_file, {name: to_bfloat16(value.detach().float().numpy()) for name, value in tensors.items()})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")


def write_all(heads: nn.ModuleDict, target: Qwen3ForCausalLM, source: Path, folder: Path) -> None:
    """Write every head below `folder`; `source` is the target's own folder."""
    config = json.loads((source / "config.json").read_text("utf-8"))
    llama = {key: value for key, value in config.items() if key not in _OF_QWEN3} | {"model_type": "llama"}
    eagle = llama | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "tie_word_embeddings": False}
    write(folder / "eagle", eagle, heads["eagle"].state_dict())
    write(folder / "eagle3", heads["eagle3"].config.to_dict(), heads["eagle3"].state_dict())
    medusa = {"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": MEDUSA_HEADS}
    sizes = {"hidden_size": config["hidden_size"], "vocab_size": config["vocab_size"], "num_hidden_layers": 1}
    write(folder / "medusa", medusa | sizes, heads["medusa"].state_dict())
    write(folder / "mtp", as_glm(config), as_glm_tensors(target, heads["mtp"]))
    for file in source.iterdir():
        if file.name.startswith(("tokenizer", "chat_template", "generation_config")):
            shutil.copy(file, folder / "mtp" / file.name)
    if (trained := folder / "dflash.gguf").is_file():
        write(folder / "dflash", as_dflash(config), dflash_tensors(trained))


_OF_QWEN3 = ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window", "transformers_version")


def as_glm(config: Mapping[str, Any]) -> dict[str, Any]:
    """GLM-4.5's configuration of the target with one head; all layers but the target's last and the head are dense."""
    theta = config["rope_parameters"]["rope_theta"]
    rotary = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 1.0}
    return {key: value for key, value in config.items() if key not in _OF_QWEN3} | {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "use_qk_norm": True,
        "partial_rotary_factor": 1.0,
        "rope_parameters": rotary,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 1,
        "first_k_dense_replace": config["num_hidden_layers"] - 1,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": config["intermediate_size"],
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    }


def as_glm_tensors(target: Qwen3ForCausalLM, head: MultiTokenLayer) -> dict[str, Tensor]:
    """The target and its head by GLM-4.5's names."""
    number = target.config.num_hidden_layers
    tensors = dict(target.state_dict())
    for name, value in head.state_dict().items():
        short = name.removeprefix("block.")
        tensors[f"model.layers.{number}.{'shared_head.' if short.startswith('norm.') else ''}{short}"] = value
    for layer in (number - 1, number):
        mixture = f"model.layers.{layer}.mlp"
        for part in ("gate_proj", "up_proj", "down_proj"):
            dense = tensors.pop(f"{mixture}.{part}.weight")
            tensors[f"{mixture}.shared_experts.{part}.weight"] = dense
            for expert in range(EXPERTS):
                tensors[f"{mixture}.experts.{expert}.{part}.weight"] = torch.zeros_like(dense)
        tensors[f"{mixture}.gate.weight"] = torch.zeros(EXPERTS, target.config.hidden_size)
        tensors[f"{mixture}.gate.e_score_correction_bias"] = torch.zeros(EXPERTS)
    return tensors


def as_dflash(config: Mapping[str, Any]) -> dict[str, Any]:
    """The published configuration of a DFlash head for the target."""
    return dict(config) | {
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": LAYERS,
        "layer_types": ["full_attention"] * LAYERS,
        "block_size": BLOCK,
        "num_target_layers": config["num_hidden_layers"],
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(READ_LAYERS)},
    }


def dflash_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of `training.flash`'s GGUF file by their published names."""
    tensors = {}
    for tensor in gguf.GGUFReader(path).tensors:
        data = tensor.data.view("<u2") if tensor.tensor_type == gguf.GGMLQuantizationType.BF16 else tensor.data
        tensors[tensor.name] = torch.from_numpy(from_bfloat16(data) if data.dtype == "<u2" else data.copy())
    layered = (f"layers.{layer}.{name}" for layer in range(LAYERS) for name in OF_LAYERS)
    names = ("fc.weight", "hidden_norm.weight", "norm.weight", *layered)
    return {name: tensors[in_gguf(name)] for name in names}


def main() -> None:
    """Read the options, train and write."""
    options = read_options(__doc__, "a folder a head", 300)
    source, target = frozen_target(options.seed)
    heads = made(target)
    train(heads, target, source, options.steps, options.seed)
    write_all(heads, target, source, options.folder)
    print(f"benchctl run vllm-eagle3 --models-dir {options.folder}")


if __name__ == "__main__":
    main()
