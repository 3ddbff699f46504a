"""What is read past aiohttp, aiohttp reads in the same way."""

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.gateway.limits import EdgeLimits
from router.gateway.quick import QuickHead, read_head
from tests.fuzz.hot_grammar import every_oddity, hot_request
from tests.fuzz.http_grammar import request
from tests.fuzz.reference import messages_of

PATHS = frozenset((b"/v1/chat/completions", b"/v1/completions"))
LIMITS = EdgeLimits()


async def is_read_alike(data: bytes, known: QuickHead | None = None) -> bool:
    """Asserts that aiohttp reads the same request, if it is a quick one; False if it isn't."""
    found = read_head(data, known, PATHS, LIMITS)
    if found is None:
        return False
    head, length, start = found
    for end in (start, len(data)):
        messages = messages_of(data[:end])
        assert messages, data
        message, body = messages[0]
        assert (message.method, message.path, tuple(message.version)) == ("POST", head.path, (1, 1))
        assert not message.should_close
        assert not message.chunked
        assert message.compression is None
        assert not message.upgrade
        theirs = {name.lower(): value for name, value in message.headers.items()}
        ours = dict(head.headers)
        assert int(theirs.pop("content-length")) == length
        del ours["content-length"]
        assert ours == theirs
        if end == len(data):
            assert body is None or body == data[start : start + length]
    return True


@given(st.integers(0, 2**64))
def test_mutated_requests(seed):
    rng = Random(seed)
    asyncio.run(is_read_alike(hot_request(rng) if seed % 2 else request(rng)))


async def test_every_oddity_of_the_hot_route():
    read = [await is_read_alike(each) for each in every_oddity()]
    assert 10 < sum(read) < len(read) - 50


LINES = st.lists(
    st.sampled_from(
        [
            b"Host: x",
            b"Content-Length: 2",
            b"content-length:2",
            b"X: \t y \t",
            b"X:",
            b"Connection: keep-alive",
            b"Connection: Keep-Alive, x",
            b"Connection: close",
            b"Transfer-Encoding: chunked",
            b"Content-Encoding: gzip",
            b"Expect: 100-continue",
            b"Upgrade: h2c",
            b"traceparent: 00-1-2-01",
        ]
    ),
    max_size=6,
)


@given(LINES, LINES)
def test_a_head_that_is_known_hides_nothing_of_the_next(first, second):
    async def check():
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        known = None
        for lines in (first, second, first):
            data = head[:-9] + b"\r\n".join([*lines, b"", b"{}"])
            await is_read_alike(data, known)
            found = read_head(data, known, PATHS, LIMITS)
            known = known if found is None else found[0]

    asyncio.run(check())


@pytest.mark.parametrize("extra", [b"X: " + b"v" * LIMITS.max_head_bytes, b"A: b\r\n" * 200])
def test_what_is_beyond_the_limits_is_left_to_aiohttp(extra):
    data = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n" + extra + b"\r\n\r\n"
    )
    assert read_head(data, None, PATHS, LIMITS) is None
