"""Splits a stream into lines. Pure."""

from __future__ import annotations

MAX_LINE = 64 << 20
"""Bytes. An object in etcd has at most a few MiB, so a longer line cannot come from a watch."""


class LineSplitter:
    """Collects pieces of a stream and returns complete lines. Takes time in proportion to the bytes, however long a line is."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._rest = bytearray()
        self._limit = limit

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the lines that `piece` completes, without newlines and without empty lines. Raises ValueError if a line exceeds the
        limit."""
        if b"\n" not in piece:
            self._keep(piece)
            return []
        first, *others = piece.split(b"\n")
        lines = [bytes(self._rest) + first, *others[:-1]]
        self._rest.clear()
        self._keep(others[-1])
        return [line for line in lines if line.strip()]

    @property
    def rest(self) -> bytes:
        """The bytes after the last newline."""
        return bytes(self._rest)

    def _keep(self, piece: bytes) -> None:
        if len(self._rest) + len(piece) > self._limit:
            raise ValueError(f"a line of more than {self._limit} bytes")
        self._rest += piece
