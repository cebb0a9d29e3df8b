"""The architectures whose Hugging Face folder can be derived."""

from __future__ import annotations

from benchctl.errors import UsageError
from benchctl.models.huggingface.eagle3 import EAGLE3
from benchctl.models.huggingface.falcon_h1 import FALCON_H1
from benchctl.models.huggingface.layout import Layout
from benchctl.models.huggingface.qwen3 import QWEN3
from benchctl.models.huggingface.qwen3_5 import QWEN3_5
from benchctl.text import one_line

_ALL = (FALCON_H1, QWEN3, QWEN3_5, EAGLE3)
LAYOUTS: dict[str, Layout] = {layout.architecture: layout for layout in _ALL}
"""By `general.architecture`."""
_BY_CLASS: dict[str, Layout] = {layout.model_class: layout for layout in _ALL}


def layout_of(architecture: str | None) -> Layout:
    """Return the layout of a GGUF architecture. Raises UsageError for an unknown one."""
    if architecture not in LAYOUTS:
        raise UsageError(
            f"no Hugging Face folder can be derived for the architecture '{one_line(str(architecture), 60)}'",
            fix=f"Known: {', '.join(LAYOUTS)}. Use the model's own repository of safetensors instead.",
        )
    return LAYOUTS[architecture]


def layout_of_class(model_class: str) -> Layout:
    """Return the layout of a transformers model class. Raises UsageError for an unknown one."""
    if model_class not in _BY_CLASS:
        known = ", ".join(_BY_CLASS)
        raise UsageError(f"no layout writes {one_line(model_class, 60)} as GGUF", fix=f"Known: {known}.")
    return _BY_CLASS[model_class]
