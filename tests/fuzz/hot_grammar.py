"""Requests of the hottest route, each wrong or odd in one chosen way.

A fast path reads these heads by itself: a listener that is lenient where a proxy before it is
strict, or the other way round, is how requests get smuggled.
"""

from random import Random

GOOD = b'{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}'
LONGEST_LINE = 16 * 2**10
MOST_HEADERS = 128
START = b"POST /v1/chat/completions HTTP/1.1"
LENGTH = b"Content-Length: %d" % len(GOOD)
CHUNKED = b"Transfer-Encoding: chunked"

STARTS = [
    b"post /v1/chat/completions HTTP/1.1", b"POST  /v1/chat/completions HTTP/1.1",
    b"POST\t/v1/chat/completions HTTP/1.1", b"POST /v1/chat/completions  HTTP/1.1",
    b"POST /v1/chat/completions HTTP/1.1 ", b"POST /v1/chat/completions HTTP/1.10",
    b"POST /v1/chat/completions HTTP/1.0", b"POST /v1/chat/completions HTTP/01.1",
    b"POST /v1/chat/completions http/1.1", b"POST /v1/chat/completions", b" " + START,
    b"\r\n" + START, b"\r\n\r\n" + START, b"\n" + START, b"\r" + START, b"\x00" + START,
    b"POST /v1/chat/completions?a=\x80 HTTP/1.1", b"POST /v1/chat/completions\x00 HTTP/1.1",
    b"POST /v1/chat/completions#x HTTP/1.1", b"POST /v1/./chat/completions HTTP/1.1",
    b"POST /v1/chat%2fcompletions HTTP/1.1", b"POST //v1/chat/completions HTTP/1.1",
    b"POST http://other/v1/chat/completions HTTP/1.1", b"PUT /v1/chat/completions HTTP/1.1",
    b"POST /v1/chat/completions" + b"?" + b"q" * (LONGEST_LINE - 40) + b" HTTP/1.1",
    b"POST /v1/chat/completions" + b"?" + b"q" * LONGEST_LINE + b" HTTP/1.1",
]  # fmt: skip
"""In place of the right first line."""

LINES = [
    b"Content-Length: %d", b"Content-Length: +%d", b"Content-Length: -%d", b"Content-Length: 0%d",
    b"Content-Length:%d", b"Content-Length:\t%d\t", b"Content-Length:  %d  ",
    b"Content-Length : %d", b"content-length: %d", b"Content-Length: %d, %d",
    b"Content-Length: 0x%x", b"Content-Length: %d ;", b"Content-Length: %d\x0b",
    b"Content-Length: %d0000000000000000000000", b"Content-Length: %d_0", b"Content_Length: %d",
    b"Content-Length: \xd9\xa1", b"Content-Length:", b"Content-Length\x00: %d",
    b"Content-Length: %d\r\nContent-Length: %d", b"Content-Length: %d\r\nContent-Length: 1",
    b"Content-Length: 1\r\nContent-Length: %d", b"X: y\r\n Content-Length: %d",
]  # fmt: skip
"""In place of the right Content-Length; `%d` is the length."""

ADDED = [
    CHUNKED, b"Transfer-Encoding: identity", b"Transfer-Encoding:", b"Transfer-Encoding: gzip",
    b"Transfer-Encoding: \x0bchunked", b"Transfer-Encoding : chunked",
    b"Transfer_Encoding: chunked",
    b"X: a\r\n b", b"X: a\r\n\tb", b"X: a\n b", b"X: a\nY: b", b"X: a\rY: b", b"X: \x00",
    b"X: \x01",
    b"X: \x7f", b"X: \x80\xff", b"X: \t", b"X:", b":", b": x", b"X", b"", b"X Y: z", b"X\t: z",
    b"X\x80: y", b"\xff: y", b"(x): y", b'"x": y', b"X@Y: z", b"X: " + b"v" * (LONGEST_LINE - 10),
    b"X: " + b"v" * (LONGEST_LINE + 10), b"N" * (LONGEST_LINE + 10) + b": v",
    b"\r\n".join([b"X: y"] * (MOST_HEADERS - 4)), b"\r\n".join([b"X: y"] * (MOST_HEADERS + 4)),
    b"Host: y", b"Host:", b"Host: a b", b"Host: \x00", b"Expect: 100-continue", b"Expect: x",
    b"Expect: 100-Continue", b"Connection: close", b"Connection: Keep-Alive, close",
    b"Connection: content-length", b"Connection: upgrade\r\nUpgrade: h2c", b"Upgrade: websocket",
    b"Content-Encoding: gzip", b"Content-Encoding: identity", b"Content-Encoding: ",
    b"Content-Type: application/json; charset=utf-16", b"Trailer: Content-Length", b"TE: x",
    b"x-request-id: " + b"i" * 200, b"x-warmgate-replica: r9", b"Keep-Alive: timeout=0",
]  # fmt: skip
"""Beside a right Content-Length."""

CHUNKS = [
    b"%x\r\n%b\r\n0\r\n\r\n", b"%X\r\n%b\r\n0\r\n\r\n", b"0%x\r\n%b\r\n0\r\n\r\n",
    b"%x;a=b\r\n%b\r\n0\r\n\r\n", b'%x;a="\r\n"\r\n%b\r\n0\r\n\r\n', b"%x \r\n%b\r\n0\r\n\r\n",
    b" %x\r\n%b\r\n0\r\n\r\n", b"+%x\r\n%b\r\n0\r\n\r\n", b"0x%x\r\n%b\r\n0\r\n\r\n",
    b"%x\n%b\r\n0\r\n\r\n", b"%x\r\n%b\n0\r\n\r\n", b"%x\r\n%b\r\n0\n\n", b"%x\r%b\r\n0\r\n\r\n",
    b"%x\r\n%b0\r\n\r\n", b"%x\r\n%bX\r\n0\r\n\r\n", b"%x\r\n%b\r\n0\r\nX: y\r\n\r\n",
    b"%x\r\n%b\r\n0\r\nContent-Length: 9\r\n\r\n", b"%x\r\n%b\r\n0\r\nX y\r\n\r\n",
    b"%x\r\n%b\r\n00000\r\n\r\n", b"%x\r\n%b\r\n-0\r\n\r\n", b"%x\r\n%b\r\n\r\n",
    b"%x;" + b"e" * 20_000 + b"\r\n%b\r\n0\r\n\r\n", b"ffffffffffffffff%x\r\n%b\r\n0\r\n\r\n",
    b"%x\r\n%b\r\n0\r\n" + b"T: x\r\n" * 2_000 + b"\r\n",
]  # fmt: skip
"""A whole chunked body: `%x` its length, `%b` itself."""

ENDS = [
    b"\r\n\r\n",
    b"\n\n",
    b"\r\n\n",
    b"\n\r\n",
    b"\r\r",
    b"\r\n\r",
    b"\r\n\r\n\r\n",
    b"\r\n \r\n",
]
NEIGHBOURS = [
    b"", b"", b"", b"\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    START + b"\r\nHost: x\r\n" + LENGTH + b"\r\n\r\n" + GOOD, b"\x00", b"GARBAGE\r\n\r\n",
    b"0\r\n\r\n",
]  # fmt: skip
"""What follows on the same connection."""


def every_oddity() -> list[bytes]:
    """Each way once, alone on its connection."""
    right = [b"Host: x", LENGTH]
    made = [_joined(START, right, GOOD)]
    made += [_joined(start, right, GOOD) for start in STARTS]
    made += [_joined(START, [b"Host: x", _filled(line)], GOOD) for line in LINES]
    made += [_joined(START, [*right, line], GOOD) for line in ADDED]
    made += [_joined(START, [line, *right], GOOD) for line in ADDED]
    made += [_joined(START, [b"Host: x", CHUNKED], _chunked(shape)) for shape in CHUNKS]
    made += [START + b"\r\nHost: x\r\n" + LENGTH + end + GOOD for end in ENDS]
    made += [_joined(START, right, GOOD) + more for more in NEIGHBOURS]
    return made


def hot_request(rng: Random) -> bytes:
    """One or two oddities at once, and perhaps a neighbour."""
    start = START if rng.random() < 0.8 else rng.choice(STARTS)
    body = GOOD if rng.random() < 0.9 else GOOD[: rng.randrange(len(GOOD))]
    lines = [b"Host: x"]
    if rng.random() < 0.25:
        lines, body = [*lines, CHUNKED], _chunked(rng.choice(CHUNKS))
    else:
        lines.append(LENGTH if rng.random() < 0.7 else _filled(rng.choice(LINES)))
    lines += rng.sample(ADDED, rng.choice((0, 0, 1, 1, 2)))
    rng.shuffle(lines)
    end = b"\r\n\r\n" if rng.random() < 0.9 else rng.choice(ENDS)
    return b"\r\n".join([start, *lines]) + end + body + rng.choice(NEIGHBOURS)


def split(data: bytes, rng: Random) -> list[bytes]:
    """In pieces: whole, cut once anywhere, or the first bytes one by one."""
    match rng.randrange(4):
        case 0:
            return [data]
        case 1:
            at = rng.randrange(len(data) + 1)
            return [data[:at], data[at:]]
        case 2:
            near = min(len(data), max(0, data.find(b"\r\n\r\n") + rng.randrange(-3, 6)))
            return [data[:near], data[near:]]
        case _:
            count = min(len(data), 200)
            return [data[i : i + 1] for i in range(count)] + [data[count:]]


def _joined(start: bytes, lines: list[bytes], body: bytes) -> bytes:
    return b"\r\n".join([start, *lines]) + b"\r\n\r\n" + body


def _filled(line: bytes) -> bytes:
    number = len(GOOD)
    return line.replace(b"%d", b"%d" % number).replace(b"%x", b"%x" % number)


def _chunked(shape: bytes) -> bytes:
    size = b"%X" % len(GOOD) if b"%X" in shape else b"%x" % len(GOOD)
    return shape.replace(b"%X", size).replace(b"%x", size).replace(b"%b", GOOD)
