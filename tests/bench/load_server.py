"""A server that streams as cheaply as one Python process can: one event per write and stream.

usage: python -m tests.bench.load_server GAP_MS

The bodies' `max_tokens` is the number of events. Every GAP_MS each open stream gets one event, in
a write of its own, as from an engine that makes a token per step. The first line on stdout is the
port; each `GET /count` answers how many events were written and the CPU seconds it took.
"""

import re
import selectors
import socket
import sys
import time
from typing import Final

EVENT: Final = (
    b'data: {"id":"chatcmpl-8a9f0c1d2e3f4a5b","object":"chat.completion.chunk","created":1790000000'
    b',"model":"m","choices":[{"index":0,"delta":{"content":" hello"},"logprobs":null,'
    b'"finish_reason":null,"token_ids":null}]}\n\n'
)
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


MAX_TOKENS: Final = re.compile(rb'"max_(?:completion_)?tokens": *([0-9]+)')


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


TOKEN: Final = framed(EVENT)


def last(tokens: int) -> bytes:
    finish = EVENT.replace(b'{"content":" hello"}', b"{}").replace(b"null,", b'"length",', 2)
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":%d}}\n\n' % tokens
    return framed(finish + usage + b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Server:
    def __init__(self, gap_s: float) -> None:
        self.gap_s = gap_s
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.listener.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.asked: dict[socket.socket, bytes] = {}
        self.left: dict[socket.socket, tuple[int, int]] = {}
        self.written = 0

    def run(self) -> None:
        due = time.perf_counter()
        while True:
            due = max(due + self.gap_s, time.perf_counter() - self.gap_s)
            while (left_s := due - time.perf_counter()) > 0:
                for key, _ in self.selector.select(left_s):
                    self.read(key.fileobj)
            self.tick()

    def read(self, source: object) -> None:
        if source is self.listener:
            connection, _ = self.listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.selector.register(connection, selectors.EVENT_READ)
            self.asked[connection] = b""
        elif isinstance(source, socket.socket):
            data = source.recv(1 << 16)
            if not data:
                self.drop(source)
                return
            self.asked[source] += data
            self.begin(source)

    def begin(self, source: socket.socket) -> None:
        data = self.asked[source]
        head, end, body = data.partition(b"\r\n\r\n")
        if not end:
            return
        if head.startswith(b"GET"):
            text = b"%d %f" % (self.written, time.process_time())
            source.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
            self.asked[source] = b""
            return
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        if len(body) < length:
            return
        self.asked[source] = b""
        asked = MAX_TOKENS.search(body)
        tokens = int(asked[1]) if asked else 1
        source.send(HEAD)
        self.left[source] = (tokens, tokens)

    def tick(self) -> None:
        for source, (left, whole) in list(self.left.items()):
            try:
                if left:
                    source.send(TOKEN)
                    self.written += 1
                    self.left[source] = (left - 1, whole)
                else:
                    del self.left[source]
                    source.send(last(whole))
            except OSError:
                self.drop(source)

    def drop(self, source: socket.socket) -> None:
        self.left.pop(source, None)
        if self.asked.pop(source, None) is not None:
            self.selector.unregister(source)
            source.close()


def main() -> None:
    server = Server(float(sys.argv[1]) / 1000)
    sys.stdout.write(f"{server.listener.getsockname()[1]}\n")
    sys.stdout.flush()
    server.run()


if __name__ == "__main__":
    main()
