"""A parser of server-sent events over raw bytes, cheap enough to sit in a timed loop.

After https://html.spec.whatwg.org/multipage/server-sent-events.html: lines end with LF, CR or CRLF, several `data`
lines of one event are joined with LF, lines that start with a colon are comments, and an event that the stream's end
cuts off is not an event. Bytes stay bytes, so that a character split between two chunks needs no care. The field
`error`, which some engines send, is handed out like `data`; other fields are dropped.
"""

from __future__ import annotations

MAX_EVENT_BYTES = 32 * 2**20
"""A longer event is no answer of a language model."""


class SseParser:
    """Feed it chunks as they arrive; it returns the payloads of the events that they complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take one chunk; return the payloads that are complete now. Raises ValueError for an endless event."""
        if self._after_cr and chunk.startswith(b"\n"):  # The second half of a CRLF that the chunks' border split.
            chunk = chunk[1:]
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        text = self._rest + chunk
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._rest = rest
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError("an event is longer than 32 MiB")
        payloads: list[bytes] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
            elif line.startswith(b"error:"):
                self._data.append(line[6:].lstrip(b" "))
            elif not line and self._data:
                payloads.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
        return payloads
