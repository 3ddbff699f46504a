"""The head of an engine's reply: parsed strictly, for lenience is how replies get split."""

import re

from msgspec import Struct, field

_HEAD = re.compile(
    rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?\r\n"
    rb"((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n)*)"
)
_NOTABLE = frozenset(
    (
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"transfer-encoding",
    )
)
_MAX_LENGTH_DIGITS = 18
_LENGTH_LINE = re.compile(rb"\r\ncontent-length: ?([0-9]{1,18})\r\n", re.IGNORECASE)
_LENGTH_NAME = b"content-length"
_BODYLESS = frozenset((204, 304))
_START = b"HTTP/1."


class BadReply(Exception):
    """Bytes that are no HTTP/1.1 reply, or whose length can be read in two ways."""


class Head(Struct):
    """Status line and headers. `length` and `is_chunked` frame the body.

    Neither: the body ends with the connection. `lines`: each header's lower-case name and its line
    as it came (of a remembered head, Content-Length's as it came first). `kept`: what clients get
    of it, by the names that we replace; see `reply_head`.
    """

    status: int
    reason: bytes
    lines: list[tuple[bytes, bytes]]
    connection: bytes
    content_type: bytes
    length: int | None
    is_chunked: bool
    is_encoded: bool
    keeps_alive: bool
    kept: dict[frozenset[bytes], bytes] = field(default_factory=dict)

    def has_body(self, method: str) -> bool:
        """False where a body is impossible, whatever the headers say (RFC 9112, 6.3)."""
        return method != "HEAD" and self.status not in _BODYLESS

    def has(self, name: bytes) -> bool:
        """Whether a header is there, by its lower-case name."""
        return any(key == name for key, _ in self.lines)

    def value(self, name: bytes) -> bytes:
        """The first header of that lower-case name; empty if there is none."""
        return next((line[len(key) + 1 :].strip() for key, line in self.lines if key == name), b"")

    def of_length(self, length: int) -> "Head":
        """The same head before another body."""
        return Head(
            self.status,
            self.reason,
            self.lines,
            self.connection,
            self.content_type,
            length,
            self.is_chunked,
            self.is_encoded,
            self.keeps_alive,
            self.kept,
        )


class Heads:
    """Parses heads, and remembers them: an engine's differ in nothing but Content-Length and, once
    a second, Date."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._known: dict[bytes, Head] = {}

    def parse(self, text: bytes) -> Head:
        """`parse_head`."""
        found = _LENGTH_LINE.search(text)
        key = text if found is None else text[: found.start(1)] + text[found.end(1) :]
        head = self._known.get(key)
        if head is None:
            head = parse_head(text)
            if [name for name, _ in head.lines].count(_LENGTH_NAME) == (found is not None):
                self._remember(key, head)
            return head
        return head if found is None else head.of_length(int(found[1]))

    def _remember(self, key: bytes, head: Head) -> None:
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[key] = head


def looks_like_http(data: bytes) -> bool:
    """False as soon as the first bytes can't begin a reply."""
    return data.startswith(_START) or _START.startswith(data)


def parse_head(text: bytes) -> Head:
    """`text` runs up to, and includes, the line end before the empty line."""
    match = _HEAD.fullmatch(text)
    if match is None:
        raise BadReply("malformed head")
    lines = [(line.partition(b":")[0].lower(), line) for line in match[4].split(b"\r\n")[:-1]]
    notable = _notable(lines)
    connection = notable.get(b"connection", b"").lower()
    coding = notable.get(b"transfer-encoding")
    length = _length(notable.get(b"content-length"))
    is_old = match[1] == b"0"
    if coding is not None and (length is not None or coding.lower() != b"chunked" or is_old):
        raise BadReply("transfer-encoding with a content-length, or not plain chunked")
    return Head(
        status=int(match[2]),
        reason=match[3] or b"",
        lines=lines,
        connection=connection,
        content_type=notable.get(b"content-type", b"").partition(b";")[0].strip().lower(),
        length=length,
        is_chunked=coding is not None,
        is_encoded=notable.get(b"content-encoding", b"identity") != b"identity",
        keeps_alive=b"keep-alive" in connection if is_old else b"close" not in connection,
    )


def _notable(lines: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Values that we act on. A header that came twice is one list."""
    values: dict[bytes, bytes] = {}
    for key, line in lines:
        if key in _NOTABLE:
            value = line[len(key) + 1 :].strip()
            values[key] = values[key] + b"," + value if key in values else value
    return values


def _length(value: bytes | None) -> int | None:
    if value is None:
        return None
    text, *others = {part.strip() for part in value.split(b",")}
    if others or not text.isdigit() or len(text) > _MAX_LENGTH_DIGITS:
        raise BadReply("conflicting or malformed content-length")
    return int(text)
