"""Heads rewritten once per request: what goes to the engine, what comes back to the client."""

import re
from collections.abc import Iterable, Sequence

from aiohttp import web

from router.proxy.head import Head

_OURS = b"x-warmgate-"
_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_NOT_FORWARDED = _HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    # a compressed reply hides its usage and its events
    b"accept-encoding",
    # aiohttp has already undone it
    b"content-encoding",
}
_NOT_RETURNED = _HOP_BY_HOP | {b"content-length"}
API_KEYS = frozenset((b"authorization", b"x-api-key"))
"""Keys to this router are nobody else's business."""
_RANK = b"X-data-parallel-rank"
_UNSAFE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def request_head(
    request: web.BaseRequest,
    body_bytes: int,
    *,
    target: bytes,
    host: bytes,
    added: Sequence[tuple[bytes, bytes]] = (),
    dropped: frozenset[bytes] = frozenset(),
) -> bytes:
    """The head that the engine gets: the client's own headers but for those that end here, and
    `added` in place of those of the same names."""
    dropped = dropped | _NOT_FORWARDED
    if added:
        dropped |= {name.lower() for name, _ in added}
    for connection in request.headers.getall("Connection", ()):
        dropped |= _tokens(connection.lower().encode("utf-8", "surrogateescape"))
    parts = [b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (request.method.encode(), target, host)]
    for name, value in request.raw_headers:
        key = name.lower()
        if key not in dropped and not key.startswith(_OURS):
            parts.append(b"%b: %b\r\n" % (name, value))
    if body_bytes or request.method not in ("GET", "HEAD"):
        parts.append(b"Content-Length: %d\r\n" % body_bytes)
    parts += [b"%b: %b\r\n" % header for header in added]
    parts.append(b"\r\n")
    return b"".join(parts)


def rank_header(rank: int) -> tuple[bytes, bytes]:
    """Which of the ranks behind one URL is meant; clients don't choose."""
    return _RANK, b"%d" % rank


def reply_head(head: Head, ours: Sequence[tuple[str, str]], framing: Iterable[bytes]) -> bytes:
    """The head that the client gets. `framing`: whole lines; `ours` replace the engine's."""
    dropped = _NOT_RETURNED.union([name.lower().encode() for name, _ in ours])
    if head.connection:
        dropped |= _tokens(head.connection)
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    lines += [line for name, line in head.lines if name not in dropped]
    if _UNSAFE.search("".join([value for _, value in ours])):
        raise ValueError("control character in a header of ours")
    lines += [f"{name}: {value}".encode() for name, value in ours]
    lines += framing
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def _tokens(connection: bytes) -> frozenset[bytes]:
    """Names of headers that are for this connection only."""
    return frozenset(token.strip() for token in connection.split(b","))
