"""Write a trained Hugging Face folder as a bfloat16 GGUF file; needs numpy, safetensors and gguf, but no torch.

    python -m training.export --checkpoint FOLDER --tokenizer FOLDER --name tiny-hybrid --gguf FILE

All weights are rounded to bfloat16 once. Names and transforms are those of `benchctl.models.huggingface`, which makes
the Hugging Face folder with exactly these values again (`huggingface_folder`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import safetensors

from benchctl.models.huggingface.architectures import Config, TensorPair
from benchctl.models.huggingface.folder import from_bfloat16, to_bfloat16
from training.gguf_metadata import FULL_PRECISION, Metadata, layout_of_class, metadata_of

if TYPE_CHECKING:
    from benchctl.models.huggingface.architectures import Array

LICENCE = "apache-2.0"
AUTHOR = "the benchctl project"


_NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "U8": "|u1",
    "BOOL": "|b1",
}


def read_weights(path: Path) -> dict[str, Array]:
    """Read all tensors, floating point ones as float32. Raises SafetensorError for a damaged file."""
    deserialize: Any = safetensors.deserialize  # the package declares no types for it
    weights: dict[str, Array] = {}
    for name, tensor in deserialize(path.read_bytes()):
        array = np.frombuffer(tensor["data"], dtype=_NUMPY[tensor["dtype"]]).reshape(tensor["shape"])
        if tensor["dtype"] == "BF16":
            array = from_bfloat16(array)
        weights[name] = array.astype(np.float32) if array.dtype.kind == "f" else array
    return weights


def written_tensors(weights: dict[str, Array], pairs: list[TensorPair]) -> dict[str, Array]:
    """Return what the file will hold, by GGUF name: bfloat16 as uint16, else float32 or int64."""
    tensors: dict[str, Array] = {}
    for pair in pairs:
        loaded = weights[pair.huggingface]
        if loaded.dtype == np.float32:
            loaded = from_bfloat16(to_bfloat16(loaded))
        data = pair.transform.forward(loaded)
        matrix = data.dtype == np.float32 and data.ndim > 1 and pair.gguf.split(".", 2)[-1] not in FULL_PRECISION
        tensors[pair.gguf] = to_bfloat16(data) if matrix else data
    return tensors


def add_tensors(writer: gguf.GGUFWriter, tensors: dict[str, Array]) -> None:
    """Add all tensors as they are."""
    for name, data in tensors.items():
        if data.dtype == np.uint16:
            writer.add_tensor(name, data.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, np.ascontiguousarray(data))


def add_general_facts(writer: gguf.GGUFWriter, name: str, description: str, parameters: int) -> None:
    """Add what does not depend on the architecture."""
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_author(AUTHOR)
    writer.add_license(LICENCE)
    writer.add_description(description)
    writer.add_languages(["en", "ja"])
    writer.add_size_label(f"{parameters / 1e6:.1f}M")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def add_hyperparameters(writer: gguf.GGUFWriter, architecture: str, metadata: Metadata) -> None:
    """Add the architecture's metadata, each value in the type that llama.cpp reads."""
    for key, value in metadata.items():
        match value:
            case bool():
                writer.add_bool(f"{architecture}.{key}", value)
            case int():
                writer.add_uint32(f"{architecture}.{key}", value)
            case float():
                writer.add_float32(f"{architecture}.{key}", value)
            case str():
                writer.add_string(f"{architecture}.{key}", value)
            case _:
                writer.add_array(f"{architecture}.{key}", value)


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
    config: Config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    layout = layout_of_class(config["architectures"][0])
    pairs = list(layout.tensors(config))
    weights = read_weights(checkpoint / "model.safetensors")
    tied = {"lm_head.weight"} if config.get("tie_word_embeddings") else set()
    if odd := (weights.keys() ^ {pair.huggingface for pair in pairs}) - tied:
        raise ValueError(f"{checkpoint}: tensors missing, or unknown to {layout.architecture}: {sorted(odd)}")
    tensors = written_tensors(weights, pairs)
    parameters = sum(data.size for data in tensors.values())
    fresh = target.with_suffix(".new")
    writer = gguf.GGUFWriter(fresh, layout.architecture)
    add_general_facts(writer, name, description, parameters)
    add_hyperparameters(writer, layout.architecture, metadata_of(layout.architecture, config))
    add_tokenizer(writer, tokenizer)
    add_tensors(writer, tensors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fresh.replace(target)
    return parameters


def main() -> None:
    """Read the options and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder with config.json and model.safetensors")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--name", required=True)
    parser.add_argument("--description", default="A tiny model for trying benchctl; no knowledge, no safety training.")
    parser.add_argument("--gguf", type=Path, required=True)
    options = parser.parse_args()
    parameters = write_gguf(options.checkpoint, options.tokenizer, options.name, options.description, options.gguf)
    print(json.dumps({"name": options.name, "parameters": parameters, "bytes": options.gguf.stat().st_size}))


if __name__ == "__main__":
    main()
