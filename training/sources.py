"""Reading the natural texts: LibreOffice help pairs, the World English Bible, the Python standard library.

Each reader takes the folder that the README's commands unpacked and yields plain text; none of it is kept in the
repository.
"""

import re
import struct
import zlib
from collections.abc import Iterator
from html import unescape
from pathlib import Path

_PARAGRAPH = re.compile(r'<(?:p|h\d)\b[^>]*\bid="((?:par|hd)_id\w+)"[^>]*>(.*?)</(?:p|h\d)>', re.DOTALL)
_SCRIPT = re.compile(r"<(script|style|note|title)\b.*?</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_SPACE = re.compile(r"\s+")


def plain(markup: str) -> str:
    """Text without tags, entities and repeated white space."""
    return _SPACE.sub(" ", unescape(_TAG.sub("", _SCRIPT.sub("", markup)))).strip()


def _paragraphs(page: Path) -> dict[str, str]:
    return {name: plain(body) for name, body in _PARAGRAPH.findall(page.read_text("utf-8"))}


def help_pairs(root: Path) -> Iterator[tuple[str, str]]:
    """English-Japanese sentences of LibreOffice help, aligned by paragraph id; `root` holds `en-US` and `ja`."""
    used: set[str] = set()
    english_root = root / "en-US" / "text"
    for page in sorted(english_root.rglob("*.html")):
        ja_page = root / "ja" / "text" / page.relative_to(english_root)
        if not ja_page.exists():
            continue
        japanese = _paragraphs(ja_page)
        for name, english in _paragraphs(page).items():
            translation = japanese.get(name, "")
            if (
                20 < len(english) < 300
                and 10 < len(translation) < 200
                and english not in used
                and english != translation
            ):
                used.add(english)
                yield english, translation


def help_pages(root: Path) -> Iterator[str]:
    """Japanese LibreOffice help pages, a paragraph a line, at least 200 characters."""
    for page in sorted((root / "ja" / "text").rglob("*.html")):
        text = "\n".join(line for line in _paragraphs(page).values() if len(line) > 15)
        if len(text) >= 200:
            yield text


def bible_chapters(root: Path) -> Iterator[str]:
    """Pieces of about 1,200 characters of a SWORD zText module (blocks of zlib, OSIS markup); `root` is its folder."""
    for index in sorted(root.glob("*.bzs")):
        data = index.with_suffix(".bzz").read_bytes()
        for offset, size, _ in struct.iter_unpack("<III", index.read_bytes()):
            if not size:
                continue
            text = plain(zlib.decompress(data[offset : offset + size]).decode("utf-8", "replace"))
            for piece in re.findall(r".{800,1200}?[.!?] |.+$", text):
                if len(piece) > 200:
                    yield piece.strip()


def library_code(root: Path) -> Iterator[str]:
    """Functions and classes of the Python standard library's own modules, 300 to 2,500 characters each."""
    for module in sorted(root.glob("*.py")) + sorted(root.glob("[a-z]*/*.py")):
        if (
            "test" in module.as_posix().split("/")[-2]
            or "site-packages" in module.parts
            or "dist-packages" in module.parts
        ):
            continue
        text = module.read_text("utf-8", "replace")
        for piece in re.split(r"\n(?=(?:def|class|async def|@)\b)", text)[1:]:
            if 300 <= len(piece) <= 2500 and piece.isascii():
                yield piece.rstrip() + "\n"
