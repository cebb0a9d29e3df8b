"""The tokenizer files of a Hugging Face folder, rebuilt from GGUF metadata."""

from __future__ import annotations

from benchctl.errors import UsageError
from benchctl.models.gguf_header import GgufHeader
from benchctl.models.huggingface.layout import Config
from benchctl.text import one_line

_CONTROL, _USER_DEFINED = 3, 4
"""`tokenizer.ggml.token_type` of a token that is found before the text is split; a control token is special as well."""

_PRE_TOKENIZERS: dict[str, Config] = {
    "gpt-2": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
}
"""How text is split before merging, by `tokenizer.ggml.pre`."""

_DECODER: Config = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "<|end_of_text|>", "<end_of_turn>", "</s>")
"""Tokens at which llama.cpp ends an answer whatever the file defines (`special_eog_ids` in `src/llama-vocab.cpp`)."""


def tokenizer_json(header: GgufHeader) -> Config:
    """Return `tokenizer.json`. Raises UsageError for a kind of tokenizer that cannot be rebuilt."""
    kind, split = header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in _PRE_TOKENIZERS or header.metadata.get("tokenizer.ggml.add_bos_token"):
        raise UsageError(
            f"a tokenizer of type {one_line(str(kind), 40)}/{one_line(str(split), 40)} cannot be rebuilt from GGUF",
            where=one_line(str(header.path)),
            fix="Rebuilt are byte-level BPE tokenizers that add no BOS: gpt2/" + ", gpt2/".join(_PRE_TOKENIZERS) + ".",
        )
    texts = _token_texts(header)
    types = header.numbers("tokenizer.ggml.token_type") or [0] * len(texts)
    if len(types) != len(texts):
        what = f"the model file contradicts itself: {len(texts)} tokens have {len(types)} types"
        raise UsageError(what, where=one_line(str(header.path)))
    merges = [merge.decode("utf-8").split(" ", 1) for merge in header.strings("tokenizer.ggml.merges") or []]
    rule = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": token, "content": text, **rule, "special": type_ == _CONTROL}
            for token, (text, type_) in enumerate(zip(texts, types, strict=True))
            if type_ in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": None,
        "pre_tokenizer": _PRE_TOKENIZERS[split],
        "post_processor": None,
        "decoder": _DECODER,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: token for token, text in enumerate(texts)},
            "merges": merges,
        },
    }


def tokenizer_config(header: GgufHeader) -> Config:
    """Return `tokenizer_config.json`."""
    texts = _token_texts(header)
    length = header.integer(f"{header.text('general.architecture')}.context_length")
    named = {f"{name}_token": texts[token] for name, token in special_tokens(header).items() if token < len(texts)}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **({} if length is None else {"model_max_length": length}),
        **named,
    }


def special_tokens(header: GgufHeader) -> dict[str, int]:
    """Return the ids of `bos`, `eos` and `pad`, as far as the file names them."""
    keys = {"bos": "bos", "eos": "eos", "pad": "padding"}
    found = {name: header.integer(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {name: token for name, token in found.items() if token is not None}


def ends_of_answer(header: GgufHeader) -> list[int]:
    """Return the tokens at which llama.cpp ends an answer to this model, the file's own first."""
    texts = _token_texts(header)
    known = [texts.index(text) for text in _ENDS if text in texts]
    own = special_tokens(header).get("eos")
    return list(dict.fromkeys(known if own is None else [own, *known]))


def _token_texts(header: GgufHeader) -> list[str]:
    return [text.decode("utf-8") for text in header.strings("tokenizer.ggml.tokens") or []]
