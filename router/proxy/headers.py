"""Heads rewritten once per request: what goes to the engine, what comes back to the client."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from router.proxy.asked import Asked
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


SentHeads = dict[tuple[str, int | None], bytes]
"""What replicas (by URL and rank) were sent of one and the same head of a client's, see `ended`."""


class Ours(NamedTuple):
    """Headers that we add to a reply: their lower-case names, and their lines with line ends."""

    names: frozenset[bytes]
    lines: bytes


def ours_of(headers: Iterable[tuple[str, str]]) -> Ours:
    """Raises ValueError for a value that would begin a line of its own."""
    pairs = list(headers)
    check_values(*(value for _, value in pairs))
    lines = "".join([f"{name}: {value}\r\n" for name, value in pairs])
    return Ours(frozenset(name.lower().encode() for name, _ in pairs), lines.encode())


def check_values(*values: str) -> None:
    """Raises ValueError for a value that would begin a line of its own."""
    if _UNSAFE.search("".join(values)):
        raise ValueError("control character in a header of ours")


def request_head(
    request: Asked,
    *,
    target: bytes,
    host: bytes,
    added: Sequence[tuple[bytes, bytes]] = (),
    dropped: frozenset[bytes] = frozenset(),
) -> bytes:
    """The head that the engine gets, but for its end (`ended`): the client's own headers without
    those that end here, and `added` in place of those of the same names."""
    dropped = dropped | _NOT_FORWARDED
    if added:
        dropped |= {name.lower() for name, _ in added}
    for name, value in request.raw_headers:
        if name.lower() == b"connection":
            dropped |= _tokens(value.lower())
    parts = [b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (request.method.encode(), target, host)]
    for name, value in request.raw_headers:
        key = name.lower()
        if key not in dropped and not key.startswith(_OURS):
            parts.append(b"%b: %b\r\n" % (name, value))
    parts += [b"%b: %b\r\n" % header for header in added]
    return b"".join(parts)


def ended(head: bytes, method: str, body_bytes: int) -> bytes:
    """A request's head with its end."""
    if body_bytes or method not in ("GET", "HEAD"):
        return b"%bContent-Length: %d\r\n\r\n" % (head, body_bytes)
    return head + b"\r\n"


def rank_header(rank: int) -> tuple[bytes, bytes]:
    """Which of the ranks behind one URL is meant; clients don't choose."""
    return _RANK, b"%d" % rank


def reply_head(head: Head, ours: Ours, framing: bytes) -> bytes:
    """The head that the client gets. `framing`: whole lines; `ours` replace the engine's."""
    kept = head.kept.get(ours.names)
    if kept is None:
        kept = head.kept[ours.names] = _kept(head, ours.names)
    return b"%b%b%b\r\n" % (kept, ours.lines, framing)


def _kept(head: Head, replaced: frozenset[bytes]) -> bytes:
    dropped = _NOT_RETURNED | replaced
    if head.connection:
        dropped |= _tokens(head.connection)
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    lines += [line for name, line in head.lines if name not in dropped]
    lines.append(b"")
    return b"\r\n".join(lines)


def _tokens(connection: bytes) -> frozenset[bytes]:
    """Names of headers that are for this connection only."""
    return frozenset(token.strip() for token in connection.split(b","))
