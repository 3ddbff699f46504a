"""Requests as a grammar makes them, nearly all of them wrong in some way."""

import gzip
import json
from random import Random

from tests.fuzz.hot_grammar import hot_request, split

METHODS = [
    b"POST",
    b"GET",
    b"PUT",
    b"HEAD",
    b"OPTIONS",
    b"DELETE",
    b"CONNECT",
    b"post",
    b"P\x00ST",
    b"",
]
TARGETS = [
    b"/v1/chat/completions", b"/v1/completions", b"/v1/models", b"/v1/embeddings", b"/v1/messages",
    b"/healthz", b"/metrics", b"/readyz", b"/debug/replicas", b"/", b"*", b"//", b"/v1/../a",
    b"/v1/chat/completions?x=%00&y=%zz",
    b"http://evil.example/v1/models", b"/%2e%2e/%ff", b"evil:80",
    b"/v1/models#x", b"/\xff\xfe", b"",
]  # fmt: skip
VERSIONS = [
    b"HTTP/1.1",
    b"HTTP/1.1",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"HTTP/9.9",
    b"HTTP/1.1 ",
    b"",
]
HEADERS = [
    b"Host: x", b"Host: y", b"Connection: close", b"Connection: keep-alive", b"Connection: upgrade",
    b"Upgrade: websocket", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
    b"Expect: 100-continue", b"Expect: 200-maybe", b"TE: trailers", b"Trailer: x",
    b"Content-Type: application/json", b"Content-Encoding: gzip", b"Content-Encoding: zstd",
    b"Content-Encoding: br", b"Content-Encoding: gzip, gzip", b"Content-Encoding: x",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked, x",
    b"Content-Length: 0", b"Content-Length: -1", b"Content-Length: 5, 5",
    b"Content-Length: 99999999",
    b"Content-Length: 1e3", b"Content-Length: ", b"X-Request-Id: \x80\x81", b"x-request-id: ok",
    b"x-warmgate-replica: r9", b"x-session-id: s", b"Authorization: Bearer k", b"Origin: null",
    b": empty", b"No-Colon", b" Leading: x", b"Space : x", b"Null: \x00", b"Tab:\tx", b"Bare: \rx",
    b"X-Data-Parallel-Rank: 9", b"Cookie: " + b"c" * 5000, b"X-Long: " + b"l" * 20_000,
]  # fmt: skip
VALUES: list[object] = [
    None,
    True,
    0,
    -1,
    1e308,
    "",
    "m",
    "absent",
    "\ud800",
    [],
    {},
    [[]],
    "x" * 5000,
    {"a": 1},
]
KEYS = ["model", "messages", "prompt", "stream", "tools", "cache_salt", "session_id", "n", "stop",
        "stream_options", "chat_template", "prompt_embeds", "max_tokens",
        "truncate_prompt_tokens"]  # fmt: skip
MOST_BYTES = 80_000


def body(rng: Random) -> bytes:
    good = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    match rng.randrange(16):
        case 0:
            return b""
        case 1:
            return rng.randbytes(rng.randrange(200))
        case 2:
            depth = rng.choice((10, 900, 40_000))
            return b'{"model":"m","messages":' + b"[" * depth
        case 3:
            text = json.dumps(good).encode()
            return gzip.compress(text + b" " * rng.choice((0, 3_000_000)), mtime=0)
        case 4:
            return json.dumps(good).encode()[: rng.randrange(90)]
        case _:
            changed: dict[str, object] = dict(good)
            for _ in range(rng.choice((0, 0, 0, 1, 1, 3))):
                changed[rng.choice(KEYS)] = rng.choice(VALUES)
            return json.dumps(changed).encode()


def chunked(data: bytes, rng: Random) -> bytes:
    sizes = [
        b"%x" % len(data),
        b"%X;ext=1" % len(data),
        b"-1",
        b"zz",
        b"f" * 20,
        b"0x5",
        b" 5",
        b"",
    ]
    size = rng.choice(sizes[:2]) if rng.random() < 0.6 else rng.choice(sizes)
    ends = [b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"0\r\n", b"", b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n"]
    return size + b"\r\n" + data + b"\r\n" + rng.choice(ends)


def request(rng: Random) -> bytes:
    """One request, mostly near enough to a good one to get somewhere."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(2000))
    method = b"POST" if rng.random() < 0.9 else rng.choice(METHODS)
    target = TARGETS[0] if rng.random() < 0.7 else rng.choice(TARGETS)
    version = b"HTTP/1.1" if rng.random() < 0.95 else rng.choice(VERSIONS)
    payload = body(rng)
    lines = [b"Host: x"] if rng.random() < 0.9 else []
    lines += rng.sample(HEADERS, rng.choice((0, 0, 0, 0, 0, 1, 1, 4)))
    if rng.random() < 0.5:
        lines.append(b"Content-Length: %d" % (len(payload) + rng.choice((0,) * 12 + (1, -1))))
    elif rng.random() < 0.7:
        lines.append(b"Transfer-Encoding: chunked")
        payload = chunked(payload, rng)
    if rng.random() < 0.02:
        lines += [b"X-%d: y" % number for number in range(300)]
    rng.shuffle(lines)
    end = b"\r\n" if rng.random() < 0.95 else rng.choice((b"\n", b"\r", b"\r\n\r\n"))
    return mutated(end.join([b" ".join((method, target, version)), *lines, b"", payload]), rng)


def mutated(data: bytes, rng: Random) -> bytes:
    """Some of them cut, doubled, or with bytes changed."""
    if rng.random() < 0.8 or not data:
        return data
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data = data[:at] + rng.randbytes(1) + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                data = data[:at] + data[at:] * 2
            case _:
                data = data[:at] + rng.choice((b"\r\n", b"\x00", b"\n", b" ", b"\xff")) + data[at:]
    return data[:MOST_BYTES]


def conversation(rng: Random) -> list[bytes]:
    """What one connection sends, in pieces: one or a few pipelined requests."""
    if rng.random() < 0.5:
        return split(hot_request(rng), rng)
    data = b"".join(request(rng) for _ in range(rng.choice((1, 1, 1, 2, 4))))
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
