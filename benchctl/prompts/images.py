"""Images in prompts: data of the row itself, or files beside it, which are read once and sent as data."""

from __future__ import annotations

import base64
import re
import stat
from functools import lru_cache
from pathlib import Path

from benchctl.errors import UsageError
from benchctl.prompts.suite import IMAGES, Message, Prompt
from benchctl.text import one_line

_DATA = re.compile(r"data:image/[a-z+.-]+;base64,[A-Za-z0-9+/=]+")
_BEGINNINGS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
_MAX_BYTES = 16 << 20


def with_images(prompt: Prompt, folder: Path, where: str) -> Prompt:
    """Return a prompt whose images are data. Raises UsageError for what is no image below `folder`."""
    if not prompt.images:
        return prompt
    try:
        messages = tuple(_with_data(message, folder) for message in prompt.messages or ())
    except UsageError as error:
        error.where = where
        raise
    return prompt.model_copy(update={"messages": messages})


def _with_data(message: Message, folder: Path) -> Message:
    if not message.images:
        return message
    parts = tuple(
        {**part, IMAGES: {**part[IMAGES], "url": _shared(_data(str(part[IMAGES]["url"]), folder))}}
        if part.get("type") == IMAGES
        else part
        for part in message.parts or ()
    )
    return message.model_copy(update={"parts": parts})


@lru_cache(maxsize=64)
def _shared(address: str) -> str:
    """Return an address; many rows with the same image keep a single copy of it."""
    return address


def _data(address: str, folder: Path) -> str:
    """Return an image as a data address."""
    if _DATA.fullmatch(address):
        return address
    shown = one_line(address, 120)
    if re.match(r"\w+:", address) and not address.startswith("file:"):
        fix = "Save it beside the prompts and name the file; or write it as data:image/png;base64,…"
        raise UsageError(f"the image {shown} is neither a file nor data; benchctl fetches none", fix=fix)
    root = folder.resolve()
    try:
        file = (root / address.removeprefix("file:").removeprefix("//")).resolve()
        if not file.is_relative_to(root):
            raise UsageError(f"the image {shown} does not lie below the prompts' folder")
        status = file.stat()  # a pipe would never end
        content = file.read_bytes() if stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES else b""
    except (OSError, ValueError, RuntimeError) as error:  # a name with a zero byte, a loop of links
        reason = getattr(error, "strerror", None) or "its name cannot be read"
        raise UsageError(f"the image {shown} cannot be read: {reason}") from None
    kind = next((kind for start, kind in _BEGINNINGS.items() if content.startswith(start)), None)
    if kind is None:
        message = f"the image {shown} is no PNG, JPEG, GIF or WebP file of at most {_MAX_BYTES >> 20} MiB"
        raise UsageError(message)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
