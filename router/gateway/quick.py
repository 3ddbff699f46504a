"""Requests of the one shape that nearly all have, read without a parser's objects.

`POST` to a path of ours, HTTP/1.1, ASCII, each header once, a Content-Length, nothing about
transfer, coding, upgrades or closing. What is of this shape can be read in one way only;
everything else is for aiohttp to read or to refuse.
"""

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from aiohttp import HttpVersion11

from router.errors import RequestTimeout
from router.proxy.headers import SentHeads

_HEAD: Final = re.compile(
    rb"POST (/[!-~]*) HTTP/1\.1\r\n"
    rb"((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e]*\r\n)+)"
)
_FIELD: Final = re.compile(rb"([^:]+):([^\r]*)\r\n")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ?([0-9]{1,15})\r\n", re.IGNORECASE)
_ODD: Final = frozenset(
    ("transfer-encoding", "content-encoding", "expect", "upgrade", "te", "trailer")
)


class QuickHead:
    """What a head says beside its Content-Length: on one connection mostly the same again.

    `headers`: by lower-case name; `sent`: what replicas got of it, see `Forwarder.forward`.
    """

    __slots__ = ("headers", "key", "path", "raw_headers", "sent")

    def __init__(self, key: bytes, path: str, raw_headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.key = key
        self.path = path
        self.raw_headers = raw_headers
        self.headers = {name.lower().decode(): value.decode() for name, value in raw_headers}
        self.sent: SentHeads = {}


class Bound(Protocol):
    """Of the listener's limits, those on a head."""

    @property
    def max_head_bytes(self) -> int: ...
    @property
    def max_headers(self) -> int: ...


def read_head(
    data: bytes, known: QuickHead | None, paths: Collection[bytes], limits: Bound
) -> tuple[QuickHead, int, int] | None:
    """The head, the body's length and where the body begins; None if it isn't of the quick shape.

    `known`: of the connection's last request.
    """
    end = data.find(b"\r\n\r\n", 0, limits.max_head_bytes)
    if end < 0 or (found := _LENGTH.search(data, 0, end + 2)) is None:
        return None
    key = data[: found.start(1)] + data[found.end(1) : end + 2]
    if known is None or known.key != key:
        known = _parse(key, data[: end + 2], paths, limits.max_headers)
        if known is None:
            return None
    return known, int(found[1]), end + 4


def _parse(key: bytes, text: bytes, paths: Collection[bytes], max_headers: int) -> QuickHead | None:
    match = _HEAD.fullmatch(text)
    if match is None or match[1] not in paths:
        return None
    fields = [(name, value.strip(b" \t")) for name, value in _FIELD.findall(match[2])]
    head = QuickHead(key, match[1].decode(), fields)
    headers = head.headers
    is_quick = (
        len(headers) == len(fields) <= max_headers
        and "host" in headers
        and _ODD.isdisjoint(headers)
        and headers.get("connection", "keep-alive").lower() == "keep-alive"
    )
    return head if is_quick else None


class Line(Protocol):
    """The client's connection."""

    transport: asyncio.Transport | None

    @property
    def writing_paused(self) -> bool: ...
    async def drain(self) -> None:
        """Until the unsent bytes are few. ConnectionError: it is lost."""


class QuickRequest:
    """As much of aiohttp's request as those read who serve it; see `router.proxy.asked`.

    `missing`: bytes of the body that are still to come; `early`: bytes that came after it.
    """

    __slots__ = (
        "_arrived",
        "_body",
        "early",
        "head",
        "headers",
        "keep_alive",
        "missing",
        "path",
        "protocol",
    )

    method: Final = "POST"
    version: Final = HttpVersion11

    def __init__(self, head: QuickHead, line: Line, length: int, body: bytes) -> None:
        self.head = head
        self.path = head.path
        self.headers: Mapping[str, str] = head.headers
        self.protocol = line
        self.keep_alive = True
        self._body = [body]
        self._arrived: asyncio.Future[None] | None = None
        self.missing = length
        self.early = b""
        self.missing -= len(body)
        if self.missing < 0:
            self._body, self.early = [body[:length]], body[length:]
            self.missing = 0

    @property
    def path_qs(self) -> str:
        return self.path

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        return self.head.raw_headers

    @property
    def transport(self) -> asyncio.Transport | None:
        return self.protocol.transport

    @property
    def writer(self) -> Line:
        return self.protocol

    def feed(self, data: bytes) -> None:
        """More bytes came: of the body, or of what follows."""
        if self.missing:
            self._body.append(data if len(data) <= self.missing else data[: self.missing])
            data = data[self.missing :]
            self.missing -= len(self._body[-1])
            if not self.missing and self._arrived is not None and not self._arrived.done():
                self._arrived.set_result(None)
        if data:
            self.early += data

    def forget(self) -> None:
        """Nobody wants the body."""
        self._body.clear()

    async def body(self, timeout_s: float) -> bytes:
        """All of it, or RequestTimeout."""
        if self.missing:
            self._arrived = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived
            except TimeoutError as exc:
                words = f"The body did not come within {timeout_s:g} s."
                raise RequestTimeout(words) from exc
        if len(self._body) > 1:
            self._body = [b"".join(self._body)]
        return self._body[0]
