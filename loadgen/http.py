"""HTTP/1.1 as a load generator needs it: a response's body from bytes that were cut anywhere.

No I/O here. A general client costs several times as much per chunk as reading the chunk does, and
whatever the client costs shows up as the server's latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

MAX_HEAD_BYTES: Final = 64 * 1024


class ProtocolError(Exception):
    """What came is not an HTTP/1.1 response."""


class Origin:
    """Where a URL's requests go: host, port, TLS or not, and the path in front of the API's."""

    __slots__ = ("authority", "host", "is_tls", "path", "port")

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http or https URL: {url!r}")
        self.host = parts.hostname
        self.is_tls = parts.scheme == "https"
        self.port = parts.port or (443 if self.is_tls else 80)
        self.path = parts.path.rstrip("/")
        self.authority = parts.netloc.rpartition("@")[2]


def request_head(origin: Origin, path: str, headers: Mapping[str, str], length: int) -> bytes:
    """A POST's head. ValueError for a header that would break out of its line."""
    lines = [f"POST {origin.path}{path} HTTP/1.1", f"Host: {origin.authority}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append(f"Content-Length: {length}")
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header holds a line break")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class ResponseParser:
    """One response. `status` and `headers` (lower-case names) are there once the head is.

    `is_done`: the body ended as its head said. `keeps_alive`: the connection can carry another
    request after it.
    """

    __slots__ = ("_is_chunked", "_left", "_rest", "headers", "is_done", "keeps_alive", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_done = False
        self.keeps_alive = False
        self._is_chunked = False
        self._left: int | None = 0
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """The piece of the body that is in `data`. ProtocolError when it is no response."""
        if self._is_chunked:
            return self._chunks(data)
        if self.status:
            return self._plain(data)
        return self._head(self._rest + data)

    def close(self) -> bool:
        """The connection ended: was the body whole? True without a length: the end is its end."""
        if self.status and not self._is_chunked and self._left is None:
            self.is_done = True
        return self.is_done

    def _head(self, data: bytes) -> bytes:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > MAX_HEAD_BYTES:
                raise ProtocolError(f"{len(data)} bytes without a head's end")
            self._rest = data
            return b""
        self._rest = b""
        status = self._read_head(data[:end].decode("latin-1"))
        rest = data[end + 4 :]
        if status < 200 and status != 101:
            # An interim response: the real one follows.
            self.headers = {}
            return self._head(rest) if rest else b""
        self.status = status
        self._frame()
        return self.feed(rest)

    def _read_head(self, text: str) -> int:
        first, *lines = text.split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ProtocolError(f"not a response: {first[:80]!r}")
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise ProtocolError(f"not a header: {line[:80]!r}")
            self.headers[name.strip().lower()] = value.strip()
        connection = self.headers.get("connection", "").lower()
        self.keeps_alive = "close" not in connection and (
            version == "HTTP/1.1" or "keep-alive" in connection
        )
        return int(rest[:3])

    def _frame(self) -> None:
        """How the body's end will be known (RFC 9112, 6.3)."""
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            self._left = 0
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._is_chunked = True
        elif length is not None:
            if not length.isdigit():
                raise ProtocolError(f"content-length {length!r}")
            self._left = int(length)
        else:
            self._left, self.keeps_alive = None, False
        self.is_done = self._left == 0 and not self._is_chunked

    def _plain(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        body = data[: self._left]
        self._left -= len(body)
        self.is_done = self._left == 0
        self._check_nothing_after(len(data) - len(body))
        return body

    def _chunks(self, data: bytes) -> bytes:
        if not self._rest and not self._left:
            # Nearly every read is one whole chunk: don't walk it.
            line = data.find(b"\r\n")
            size = _size(data[:line]) if line > 0 else 0
            if size and len(data) == line + size + 4 and data.endswith(b"\r\n"):
                return data[line + 2 : -2]
        return self._walk(self._rest + data)

    def _walk(self, data: bytes) -> bytes:
        """`_left` is what is missing of the current chunk, its closing line break included."""
        parts: list[bytes] = []
        at, left = 0, self._left or 0
        while True:
            if left:
                piece = data[at : at + left]
                parts.append(piece[: max(0, left - 2)])
                at, left = at + len(piece), left - len(piece)
                if left:
                    break
            line = data.find(b"\r\n", at)
            if line < 0:
                break
            size = _size(data[at:line])
            if size == 0:
                return b"".join((*parts, self._trailers(data, at, line)))
            at, left = line + 2, size + 2
        self._left, self._rest = left, data[at:]
        if len(self._rest) > MAX_HEAD_BYTES:
            raise ProtocolError("a chunk's size without an end")
        return b"".join(parts)

    def _trailers(self, data: bytes, at: int, line: int) -> bytes:
        """What follows the last chunk, up to an empty line; never part of the body."""
        self._left = 0
        end = line if data.startswith(b"\r\n", line + 2) else data.find(b"\r\n\r\n", line)
        if end < 0:
            self._rest = data[at:]
            return b""
        self.is_done, self._rest = True, b""
        self._check_nothing_after(len(data) - end - 4)
        return b""

    def _check_nothing_after(self, extra: int) -> None:
        # Nobody asked for more: whatever it is, it is not the next answer.
        if extra:
            self.keeps_alive = False


def _size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError as exc:
        raise ProtocolError(f"not a chunk's size: {line[:40]!r}") from exc
