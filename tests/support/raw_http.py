"""Replies as engines write them, and what a client reads of them."""

from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data" / "http"
PATH = "/v1/chat/completions"


def capture(name: str) -> bytes:
    """A real engine's reply, head and all, as it came over the wire."""
    return (DATA / f"{name}.response.raw").read_bytes()


def event(text: str, finish: str = "null") -> bytes:
    """One event of a chat stream."""
    return (
        b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":'
        b'{"content":"%b"},"finish_reason":%b}]}\n\n' % (text.encode(), finish.encode())
    )


ROLE = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"finish_reason":null}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*events: bytes) -> bytes:
    """A whole reply, one event per chunk."""
    return STREAM_HEAD + b"".join(chunk(each) for each in events) + LAST


def json_reply(body: bytes, status: bytes = b"200 OK", extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status,
        extra,
        len(body),
        body,
    )


def split_reply(raw: bytes) -> tuple[int, dict[str, str], bytes, bool]:
    """Status, headers (lower case), decoded body, and whether the body was whole."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    status = int(first.split(" ")[1])
    if headers.get("transfer-encoding") == "chunked":
        return (status, headers, *dechunk(body))
    whole = "content-length" not in headers or len(body) == int(headers["content-length"])
    return status, headers, body, whole


def dechunk(data: bytes) -> tuple[bytes, bool]:
    """A second, plainer decoder than the one under test."""
    body = b""
    while data:
        line, _, data = data.partition(b"\r\n")
        size = int(line, 16)
        if size == 0:
            return body, data == b"\r\n"
        body, data = body + data[:size], data[size + 2 :]
    return body, False
