import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.proxy.body import ChunkedBody, FixedBody, UnframedBody, chunk, whole_chunks
from router.proxy.head import BadReply


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(at % (len(data) + 1) for at in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.lists(st.integers(0, 400), max_size=12),
    st.sampled_from([b"", b"X-Trailer: 1\r\n"]),
)
def test_chunks_are_decoded_however_they_arrive(payloads, cuts, trailer):
    raw = b"".join(chunk(payload) for payload in payloads) + b"0\r\n" + trailer + b"\r\n"
    body = ChunkedBody()
    decoded = b"".join(body.decode(piece) for piece in cut(raw, cuts))
    assert decoded == b"".join(payloads)
    assert body.is_whole
    assert not body.has_excess


@given(st.binary(max_size=30), st.lists(st.integers(0, 40), max_size=5))
def test_a_fixed_body_ends_at_its_length(data, cuts):
    body = FixedBody(len(data))
    assert b"".join(body.decode(piece) for piece in cut(data, cuts)) == data
    assert body.is_whole


def test_size_may_have_extensions_and_upper_case():
    body = ChunkedBody()
    assert body.decode(b"A ;name=value\r\n0123456789\r\n0;x\r\n\r\n") == b"0123456789"
    assert body.is_whole


@pytest.mark.parametrize(
    "raw",
    [
        b"x\r\n",
        b"0x5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"-5\r\n",
        b"\r\n",
        b"5\r\nhello world\r\n",
        b"5\r\nhelloX",
        b"5" * 5000,
        b"fffffffffffffffff\r\n",
        b"0\r\n" + b"a: b\r\n" * 5000,
    ],
)
def test_malformed_chunks_are_refused(raw):
    with pytest.raises(BadReply):
        ChunkedBody().decode(raw)


@pytest.mark.parametrize("body", [ChunkedBody(), FixedBody(2)])
def test_bytes_after_the_end_are_noticed_and_not_passed(body):
    raw = b"2\r\nhi\r\n0\r\n\r\n" if isinstance(body, ChunkedBody) else b"hi"
    assert body.decode(raw + b"HTTP/1.1 200 OK") == b"hi"
    assert body.is_whole
    assert body.has_excess


def test_only_an_unframed_body_may_end_with_the_connection():
    assert UnframedBody().ends_with_connection()
    assert not FixedBody(1).ends_with_connection()
    assert not ChunkedBody().ends_with_connection()


def test_whole_chunks_that_end_an_event_are_counted():
    one, two = chunk(b"data: 1\n\n"), chunk(b"data: 2\n\n")
    assert whole_chunks(one + two, b"\n\n\r\n") == len(one + two)
    assert whole_chunks(one + two[:-1], b"\n\n\r\n") == len(one)
    assert whole_chunks(one + b"0\r\n\r\n", b"\n\n\r\n") == len(one)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"0\r\n\r\n",
        b"1\r\n\n\r\n",
        chunk(b"data: half"),
        chunk(b"data: one line\n"),
        b"9;ext\r\ndata: 1\n\n\r\n",
        b"0x9\r\ndata: 1\n\n\r\n",
        b"8\r\ndata: 1\n\n\r\n",
        b"9\r\ndata: 1\n\nXX",
    ],
)
def test_anything_else_is_left_to_the_decoder(raw):
    assert whole_chunks(raw, b"\n\n\r\n") == 0
