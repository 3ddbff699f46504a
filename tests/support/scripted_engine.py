"""An engine whose every write is scripted and noted: what a client measures can be checked.

usage: python -m tests.support.scripted_engine

A process of its own, one thread per connection, plain blocking sockets: nothing of the client's
CPU time is in its way. Its clock is the machine's monotonic one, which the client's is too, so a
write's time here and a read's time there are comparable. The request's `model` names the script.
The first line on stdout is the port; `GET /truth` gives what was written, and when.
"""

import json
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.loadgen import DONE, ROLE, chunk, sse, usage, usage_chunk

PROMPT, CACHED = 100, 48
GAP_S: Final = 0.02
FIRST_S: Final = 0.05


@dataclass(frozen=True)
class Write:
    """Bytes after a pause. `tokens`: how many an answer's reader gains by it, by our own count."""

    after_s: float
    data: bytes
    tokens: int = 0
    is_content: bool = True


@dataclass
class Told:
    """What happened to one request."""

    model: str
    asked_at: float
    tokens: list[tuple[float, int]] = field(default_factory=list)
    content_at: float | None = None


def text(words: int) -> dict[str, str]:
    return {"content": "word " * words}


def end(tokens: int) -> bytes:
    return chunk({}, "length") + usage_chunk(PROMPT, tokens, CACHED) + DONE


def role_first() -> list[Write]:
    """The role-only chunk comes at once, the first token a good while later."""
    later = [Write(GAP_S, chunk(text(1)), 1) for _ in range(9)]
    return [Write(0.0, ROLE), Write(FIRST_S, chunk(text(1)), 1), *later, Write(0.0, end(10))]


def several_per_chunk() -> list[Write]:
    """Three tokens a chunk, with vLLM's running usage in each."""
    counts = range(3, 31, 3)
    writes = [Write(GAP_S, chunk(text(3), usage=usage(PROMPT, n)), 3) for n in counts]
    return [Write(0.0, ROLE), *writes, Write(0.0, end(30))]


def several_without_usage() -> list[Write]:
    """Three tokens a chunk and only a total at the end: shared out by text."""
    return [*(Write(GAP_S, chunk(text(3)), 3) for _ in range(10)), Write(0.0, end(30))]


def reasoning_first() -> list[Write]:
    """Half of the tokens are thought, in either of the two field names."""
    thoughts = [
        Write(GAP_S, chunk({name: "hmm "}), 1, is_content=False)
        for name in ("reasoning_content", "reasoning") * 3
    ]
    return [*thoughts, *(Write(GAP_S, chunk(text(1)), 1) for _ in range(6)), Write(0.0, end(12))]


def tool_call() -> list[Write]:
    """Nothing but a tool's name and arguments."""
    parts = ({"name": "find"}, {"arguments": '{"a": '}, {"arguments": "1}"})
    deltas = [chunk({"tool_calls": [{"index": 0, "function": part}]}) for part in parts]
    return [*(Write(GAP_S, data, 1, is_content=False) for data in deltas), Write(0.0, end(3))]


def usage_last() -> list[Write]:
    """The usage-only chunk and the end come late: they are no token, and no end of one."""
    tokens = [Write(GAP_S, chunk(text(1)), 1) for _ in range(5)]
    return [*tokens, Write(0.1, usage_chunk(PROMPT, 5, CACHED)), Write(0.05, DONE)]


def big_events() -> list[Write]:
    """64 KB per event."""
    data = chunk(text(1), padding="x" * 64 * 1024)
    return [*(Write(GAP_S, data, 1) for _ in range(8)), Write(0.0, end(8))]


def coalesced() -> list[Write]:
    """Four tokens' events in one write: they came at one time."""
    return [*(Write(GAP_S, chunk(text(1)) * 4, 4) for _ in range(6)), Write(0.0, end(24))]


def cut_anywhere() -> list[Write]:
    """Every event in three pieces, with a pause inside: it is there when its end is."""
    writes = []
    for _ in range(6):
        data = chunk(text(1))
        writes += [Write(GAP_S, data[:20]), Write(0.005, data[20:-1]), Write(0.005, data[-1:], 1)]
    return [*writes, Write(0.0, end(6))]


def error_midway() -> list[Write]:
    """Status 200, three tokens, then an error event and [DONE]."""
    tokens = [Write(GAP_S, chunk(text(1)), 1) for _ in range(3)]
    return [*tokens, Write(GAP_S, sse({"error": {"message": "out of memory"}}) + DONE)]


def no_end() -> list[Write]:
    """The stream ends properly as HTTP, and not as an answer."""
    return [Write(GAP_S, chunk(text(1)), 1) for _ in range(3)]


def probe() -> list[Write]:
    """For `delays`."""
    return [*(Write(GAP_S, chunk(text(1)), 1) for _ in range(10)), Write(0.0, end(10))]


PROBE: Final = probe.__name__
SCRIPTS: Final = {
    script.__name__: script
    for script in (
        *(role_first, several_per_chunk, several_without_usage, reasoning_first, tool_call),
        *(usage_last, big_events, coalesced, cut_anywhere, error_midway, no_end, probe),
    )
}


class Truth(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.told: dict[str, Told] = {}
        self.lock = threading.Lock()

    def begin(self, model: str, asked_at: float) -> tuple[str, Told]:
        with self.lock:
            name = str(len(self.told))
            told = self.told[name] = Told(model, asked_at)
        return name, told


class Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    server: Truth

    def handle(self) -> None:
        while head := list(self._head()):
            if head[0].startswith(b"GET"):
                self._tell()
                continue
            length = next(int(h[15:]) for h in head if h.lower().startswith(b"content-length:"))
            body = json.loads(self.rfile.read(length))
            self._generate(body["model"], time.perf_counter())

    def _head(self) -> Iterator[bytes]:
        while (line := self.rfile.readline().strip()) != b"":
            yield line

    def _tell(self) -> None:
        body = json.dumps({name: vars(told) for name, told in self.server.told.items()}).encode()
        self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def _generate(self, model: str, asked_at: float) -> None:
        name, told = self.server.begin(model, asked_at)
        self.request.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nx-request-id: %s\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" % name.encode()
        )
        due = asked_at
        for write in SCRIPTS[model]():
            due += write.after_s
            time.sleep(max(0.0, due - time.perf_counter()))
            at = time.perf_counter()
            self.request.sendall(b"%x\r\n%s\r\n" % (len(write.data), write.data))
            if write.tokens:
                told.tokens.append((at, write.tokens))
                if write.is_content and told.content_at is None:
                    told.content_at = at
        self.request.sendall(b"0\r\n\r\n")


def delays(url: str, model: str) -> Sequence[float]:
    """Seconds from a write to its read by the plainest possible client: this machine's noise."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"model": model}).encode()
    read_at: list[float] = []
    seen = b""
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        while not seen.endswith(b"0\r\n\r\n"):
            data = connection.recv(1 << 20)
            now = time.perf_counter()
            seen += data
            read_at += [now] * data.count(b'"content": "word')
    written = [one for one in truth(url).values() if one["model"] == model][-1]["tokens"]
    return [read - at for read, (at, _) in zip(read_at, written, strict=True)]


def truth(url: str) -> dict[str, Any]:
    """Request id → what it was sent, and when."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET /truth HTTP/1.1\r\n\r\n")
        stream = connection.makefile("rb")
        lines = iter(stream.readline, b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"Content-Length:"))
        stream.readline()
        found: dict[str, Any] = json.loads(stream.read(length))
    return found


def main() -> None:
    with Truth() as server:
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
