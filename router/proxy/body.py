"""Where an engine's body ends: by length, by chunks, or with the connection."""

import re
from typing import Protocol

from router.proxy.head import BadReply, Head

_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_PLAIN_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})\r\n")
_MAX_SIZE_DIGITS = 8
_HEX = frozenset(b"0123456789abcdefABCDEF")
_COMMON_SIZES = {b"%x" % size: size for size in range(1, 1024)}
_MAX_LINE_BYTES = 4096
_MAX_TRAILER_BYTES = 16 * 1024


class Body(Protocol):
    """A decoder. `is_whole` once the last byte was seen; `has_excess` if more came after it."""

    is_whole: bool
    has_excess: bool

    def decode(self, data: bytes) -> bytes:
        """The body's own bytes in `data`. Raises BadReply."""

    def ends_with_connection(self) -> bool:
        """The engine closed: whether that was the body's end."""


class FixedBody:
    """Content-Length bytes."""

    __slots__ = ("_left", "has_excess", "is_whole")

    def __init__(self, length: int) -> None:
        self._left = length
        self.is_whole = length == 0
        self.has_excess = False

    def decode(self, data: bytes) -> bytes:
        left = self._left - len(data)
        if left < 0:
            self.has_excess = True
            data = data[:left]
            left = 0
        self._left = left
        self.is_whole = left == 0
        return data

    def ends_with_connection(self) -> bool:
        return self.is_whole


class UnframedBody:
    """Everything until the engine closes."""

    def __init__(self) -> None:
        self.is_whole = False
        self.has_excess = False

    def decode(self, data: bytes) -> bytes:
        return data

    def ends_with_connection(self) -> bool:
        self.is_whole = True
        return True


class ChunkedBody:
    """Chunks of any shape. Extensions and trailers are dropped."""

    def __init__(self) -> None:
        self.is_whole = False
        self.has_excess = False
        self._rest = b""
        self._left = 0
        self._wants_line_end = False
        self._in_trailers = False
        self._trailer_bytes = 0

    @property
    def is_between_chunks(self) -> bool:
        """The next byte begins a chunk's size."""
        return not (self._rest or self._left or self._wants_line_end or self._in_trailers)

    def decode(self, data: bytes) -> bytes:
        if self._rest:
            data, self._rest = self._rest + data, b""
        parts: list[bytes] = []
        at = 0
        while at < len(data) and not self.is_whole:
            if self._left:
                parts.append(data[at : at + self._left])
                at += len(parts[-1])
                self._left -= len(parts[-1])
                self._wants_line_end = not self._left
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._keep(data[at:])
                at = len(data)
                continue
            self._line(data[at:end])
            at = end + 2
        self.has_excess = at < len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def ends_with_connection(self) -> bool:
        return self.is_whole

    def _keep(self, rest: bytes) -> None:
        if len(rest) > _MAX_LINE_BYTES or (self._wants_line_end and rest != b"\r"):
            raise BadReply("malformed chunk")
        self._rest = rest

    def _line(self, line: bytes) -> None:
        if self._wants_line_end:
            if line:
                raise BadReply("a chunk is longer than its size")
            self._wants_line_end = False
        elif self._in_trailers:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _MAX_TRAILER_BYTES:
                raise BadReply("trailers too long")
            self.is_whole = not line
        else:
            match = _SIZE.fullmatch(line)
            if match is None:
                raise BadReply("malformed chunk size")
            self._left = int(match[1], 16)
            self._in_trailers = self._left == 0


def body_of(head: Head) -> Body:
    """The decoder that a reply's head asks for."""
    if head.is_chunked:
        return ChunkedBody()
    return UnframedBody() if head.length is None else FixedBody(head.length)


def whole_chunks(data: bytes, ending: bytes) -> int:
    """How many leading bytes of `data` are whole plain chunks whose raw bytes end so.

    `data` must begin between chunks. Stops before the last (empty) chunk. Those bytes may be passed
    on as they are: this is the work done per event of a stream.
    """
    total = len(data)
    if data.endswith(ending) and 0 < (start := data.find(b"\r\n", 0, 10)) <= _MAX_SIZE_DIGITS:
        # one chunk, one event: what an engine that isn't hurried sends
        size = data[:start]
        length = _COMMON_SIZES.get(size) or (int(size, 16) if _HEX.issuperset(size) else 0)
        if length > len(ending) and start + 4 + length == total:
            return total
    at = 0
    width = len(ending)
    while (match := _PLAIN_SIZE.match(data, at)) is not None:
        end = match.end() + int(match[1], 16) + 2
        if end > total or end - match.end() < width or data[end - width : end] != ending:
            break
        at = end
    return at


def chunk(payload: bytes) -> bytes:
    """`payload` as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


LAST_CHUNK = b"0\r\n\r\n"
