"""Write a trained Falcon-H1 folder as a bfloat16 GGUF file; needs numpy, safetensors and gguf, but no torch.

    python -m training.export --checkpoint FOLDER --tokenizer FOLDER --name tiny-hybrid --gguf FILE [--rounded FOLDER]

All weights are rounded to bfloat16 once. `--rounded` writes the Hugging Face folder with exactly these values, for
comparing transformers with llama.cpp. Names and shapes are those of llama.cpp's own converter.
"""

import argparse
import json
import shutil
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

Weights = dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]

LICENCE = "apache-2.0"
AUTHOR = "the benchctl project"

# Hugging Face name within a layer -> GGUF name within a block
_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "pre_ff_layernorm.weight": "ffn_norm",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mamba.in_proj.weight": "ssm_in.weight",
    "mamba.conv1d.weight": "ssm_conv1d.weight",
    "mamba.conv1d.bias": "ssm_conv1d.bias",
    "mamba.dt_bias": "ssm_dt.bias",
    "mamba.A_log": "ssm_a",
    "mamba.D": "ssm_d",
    "mamba.out_proj.weight": "ssm_out.weight",
    "feed_forward.gate_proj.weight": "ffn_gate.weight",
    "feed_forward.up_proj.weight": "ffn_up.weight",
    "feed_forward.down_proj.weight": "ffn_down.weight",
}
_OUTER = {"model.embed_tokens.weight": "token_embd.weight", "model.final_layernorm.weight": "output_norm.weight"}


def rounded(checkpoint: Path) -> Weights:
    """The checkpoint's weights, each rounded to the nearest bfloat16, as float32."""
    kind = gguf.GGMLQuantizationType.BF16
    weights = load_file(checkpoint / "model.safetensors")
    return {
        name: gguf.quants.dequantize(gguf.quants.quantize(np.atleast_1d(data.astype(np.float32)), kind), kind)
        for name, data in weights.items()
    }


def tensor_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    if name in _OUTER:
        return _OUTER[name]
    _, _, layer, inner = name.split(".", 3)
    return f"blk.{layer}.{_LAYER[inner]}"


def add_tensors(writer: gguf.GGUFWriter, weights: Weights) -> None:
    """Add all tensors, matrices as bfloat16 and the rest as float32."""
    for name, loaded in weights.items():
        target, data = tensor_name(name), loaded
        if target.endswith("ssm_conv1d.weight"):
            data = data.reshape(data.shape[0], data.shape[-1])
        elif target.endswith("ssm_a"):
            data = -np.exp(data).reshape(-1, 1)
        elif target.endswith("ssm_d"):
            data = data.reshape(-1, 1)
        if data.ndim == 1 or ".ssm_conv1d." in target or target.endswith(("ssm_a", "ssm_d")):
            writer.add_tensor(target, data.astype(np.float32))
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(target, gguf.quants.quantize(data, kind), raw_dtype=kind)


def add_model_facts(
    writer: gguf.GGUFWriter, config: dict[str, object], name: str, description: str, parameters: int
) -> None:
    """Add the architecture's hyperparameters and the general facts."""
    number = {key: value for key, value in config.items() if isinstance(value, int)}
    heads, width = number["num_attention_heads"], number["head_dim"]
    rope = config.get("rope_parameters") or {}
    theta = rope["rope_theta"] if isinstance(rope, dict) and "rope_theta" in rope else config["rope_theta"]
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_author(AUTHOR)
    writer.add_license(LICENCE)
    writer.add_description(description)
    writer.add_languages(["en", "ja"])
    writer.add_size_label(f"{parameters / 1e6:.1f}M")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(number["max_position_embeddings"])
    writer.add_embedding_length(number["hidden_size"])
    writer.add_feed_forward_length(number["intermediate_size"])
    writer.add_block_count(number["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(number["num_key_value_heads"])
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(str(theta)))
    writer.add_layer_norm_rms_eps(float(str(config["rms_norm_eps"])))
    writer.add_ssm_conv_kernel(number["mamba_d_conv"])
    writer.add_ssm_inner_size(number["mamba_d_ssm"])
    writer.add_ssm_state_size(number["mamba_d_state"])
    writer.add_ssm_time_step_rank(number["mamba_n_heads"])
    writer.add_ssm_group_count(number["mamba_n_groups"])
    writer.add_vocab_size(number["vocab_size"])


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    """Add vocabulary, merges, special tokens and the chat template."""
    described = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocabulary: dict[str, int] = described["model"]["vocab"]
    special = {token["content"]: token["id"] for token in described["added_tokens"] if token["special"]}
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word in words])
    writer.add_token_merges(
        [pair if isinstance(pair, str) else " ".join(pair) for pair in described["model"]["merges"]]
    )
    writer.add_bos_token_id(special["<|endoftext|>"])
    writer.add_eos_token_id(special["<|im_end|>"])
    writer.add_pad_token_id(special["<|pad|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text("utf-8"))


def write_gguf(checkpoint: Path, tokenizer: Path, name: str, description: str, target: Path) -> int:
    """Write the file under a temporary name, then rename it; returns the number of parameters."""
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    fresh = target.with_suffix(".new")
    writer = gguf.GGUFWriter(fresh, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.FALCON_H1])
    weights = rounded(checkpoint)
    weights.pop("lm_head.weight", None)
    parameters = sum(data.size for data in weights.values())
    add_model_facts(writer, config, name, description, parameters)
    add_tokenizer(writer, tokenizer)
    add_tensors(writer, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fresh.replace(target)
    return parameters


def write_rounded(checkpoint: Path, tokenizer: Path, folder: Path) -> None:
    """Write the Hugging Face folder with the rounded values in float32, and the tokenizer beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(rounded(checkpoint), folder / "model.safetensors", metadata={"format": "pt"})
    for source in [*checkpoint.glob("*config.json"), *tokenizer.iterdir()]:
        shutil.copyfile(source, folder / source.name)


def main() -> None:
    """Read the options and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder with config.json and model.safetensors")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--name", required=True)
    parser.add_argument("--description", default="A tiny model for trying benchctl; no knowledge, no safety training.")
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--rounded", type=Path)
    options = parser.parse_args()
    parameters = write_gguf(options.checkpoint, options.tokenizer, options.name, options.description, options.gguf)
    if options.rounded:
        write_rounded(options.checkpoint, options.tokenizer, options.rounded)
    print(json.dumps({"name": options.name, "parameters": parameters, "bytes": options.gguf.stat().st_size}))


if __name__ == "__main__":
    main()
