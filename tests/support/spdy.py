"""SPDY/3.1 as far as kubectl and a kubelet use it to forward ports: frames, names and values.

After draft-mbelshe-httpbis-spdy-00. Windows are left alone: neither side minds them.
"""

from __future__ import annotations

import struct
import zlib
from asyncio import StreamReader
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7
FIN: Final = 1
_VERSION: Final = 3

_WORDS: Final = """
options head post put delete trace accept accept-charset accept-encoding accept-language
accept-ranges age allow authorization cache-control connection content-base content-encoding
content-language content-length content-location content-md5 content-range content-type date etag
expect expires from host if-match if-modified-since if-none-match if-range if-unmodified-since
last-modified location max-forwards pragma proxy-authenticate proxy-authorization range referer
retry-after server te trailer transfer-encoding upgrade user-agent vary via warning
www-authenticate method get status|200 OK|version HTTP/1.1 url public set-cookie keep-alive origin
"""
_TAIL: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request"
    "401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented"
    "503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, "
    "Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,"
    "application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch"
    "charset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _sized(text: str) -> bytes:
    return struct.pack(">I", len(text)) + text.encode()


def _dictionary() -> bytes:
    words = [
        word
        for part in _WORDS.replace("\n", " ").split("|")
        for word in ([part] if part == "200 OK" else part.split())
    ]
    return b"".join(map(_sized, words)) + _TAIL.encode()


DICTIONARY: Final = _dictionary()
assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2, "not the dictionary that the draft has"


@dataclass(slots=True)
class Frame:
    """`kind` 0: data. `headers`: of a SYN_STREAM. `payload`: what else it holds."""

    kind: int
    stream: int
    flags: int = 0
    payload: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ends(self) -> bool:
        """The other side sends no more on this stream."""
        return bool(self.flags & FIN)


class Reader:
    """Frames of one connection; names and values are packed by one stream of zlib for all."""

    def __init__(self, source: StreamReader) -> None:
        self._source = source
        self._unpack = zlib.decompressobj(zdict=DICTIONARY)

    async def read(self) -> Frame:
        """asyncio.IncompleteReadError: the connection has ended."""
        first, second = struct.unpack(">II", await self._source.readexactly(8))
        flags, payload = second >> 24, await self._source.readexactly(second & 0xFFFFFF)
        if not first >> 31:
            return Frame(0, first, flags, payload)
        kind = first & 0xFFFF
        if kind not in (SYN_STREAM, RST_STREAM):
            return Frame(kind, 0, flags, payload)
        stream = struct.unpack(">I", payload[:4])[0] & 0x7FFFFFFF
        headers = self._headers(payload[10:]) if kind == SYN_STREAM else {}
        return Frame(kind, stream, flags, payload, headers)

    def _headers(self, packed: bytes) -> dict[str, str]:
        plain = self._unpack.decompress(packed)
        (count,), at, texts = struct.unpack(">I", plain[:4]), 4, []
        for _ in range(2 * count):
            (size,) = struct.unpack(">I", plain[at : at + 4])
            texts.append(plain[at + 4 : at + 4 + size].decode())
            at += 4 + size
        return dict(zip(texts[::2], texts[1::2], strict=True))


class Writer:
    """The bytes of frames of one connection."""

    def __init__(self) -> None:
        self._pack = zlib.compressobj(zdict=DICTIONARY)

    def reply(self, stream: int) -> bytes:
        """The stream is welcome; no names and values."""
        packed = self._pack.compress(struct.pack(">I", 0)) + self._pack.flush(zlib.Z_SYNC_FLUSH)
        return self._control(SYN_REPLY, struct.pack(">I", stream) + packed)

    def ping(self, payload: bytes) -> bytes:
        return self._control(PING, payload)

    def data(self, stream: int, data: bytes, *, ends: bool = False) -> bytes:
        return struct.pack(">II", stream, (FIN if ends else 0) << 24 | len(data)) + data

    def _control(self, kind: int, payload: bytes) -> bytes:
        return struct.pack(">II", 1 << 31 | _VERSION << 16 | kind, len(payload)) + payload
