"""Responses cut anywhere, framed in every way that servers use."""

import pytest

from loadgen.http import Origin, ProtocolError, ResponseParser, request_head

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b"data: one\n\ndata: two\n\n" * 20


def chunks(*sizes: int) -> bytes:
    """BODY in chunks of these sizes, repeated."""
    at, found, n = 0, b"", 0
    while at < len(BODY):
        piece = BODY[at : at + sizes[n % len(sizes)]]
        found += b"%x\r\n%s\r\n" % (len(piece), piece)
        at, n = at + len(piece), n + 1
    return CHUNKED + found + b"0\r\n\r\n"


def fed(data: bytes, step: int) -> tuple[ResponseParser, bytes]:
    parser = ResponseParser()
    body = b"".join(parser.feed(data[n : n + step]) for n in range(0, len(data), step))
    return parser, body


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize("sizes", [(11,), (1, 5, 30), (1000,)])
def test_chunks_cut_anywhere_give_the_body(step, sizes):
    parser, body = fed(chunks(*sizes), step)
    assert (body, parser.is_done, parser.keeps_alive) == (BODY, True, True)


@pytest.mark.parametrize("step", [1, 10, 10_000])
def test_length_ends_the_body(step):
    parser, body = fed(OK + b"content-length: %d\r\n\r\n" % len(BODY) + BODY, step)
    assert (body, parser.is_done, parser.keeps_alive) == (BODY, True, True)


def test_without_a_length_the_end_of_the_connection_is_the_end():
    parser, body = fed(OK + b"\r\n" + BODY, 9)
    assert (body, parser.is_done) == (BODY, False)
    assert parser.close()
    assert not parser.keeps_alive


def test_chunked_body_that_is_cut_is_not_whole():
    parser, _ = fed(chunks(11)[:-20], 9)
    assert not parser.close()


def test_trailers_and_extensions_are_no_part_of_the_body():
    parser, body = fed(CHUNKED + b"3;x=y\r\nabc\r\n0\r\nx-checksum: 1\r\n\r\n", 5)
    assert (body, parser.is_done) == (b"abc", True)


def test_interim_response_is_passed_over():
    parser, body = fed(b"HTTP/1.1 100 Continue\r\n\r\n" + chunks(30), 13)
    assert (parser.status, body) == (200, BODY)


def test_empty_answers_are_done_with_their_head():
    for head in (b"HTTP/1.1 204 No\r\n\r\n", b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"):
        parser, body = fed(head, 100)
        assert (parser.is_done, body) == (True, b"")


def test_header_names_are_lower_case_and_values_whole():
    parser, _ = fed(OK + b"X-Warmgate-Replica:  r1 \r\nContent-Length: 0\r\n\r\n", 100)
    assert parser.headers["x-warmgate-replica"] == "r1"


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200", False),
    ],
)
def test_connection_is_used_again_only_if_both_sides_mean_it(head, keeps):
    assert fed(head, 1000)[0].keeps_alive is keeps


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        CHUNKED + b"zz\r\nabc\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_no_response_is_refused(data):
    with pytest.raises(ProtocolError):
        fed(data, len(data))


def test_request_goes_below_the_path_of_the_url():
    head = request_head(Origin("http://h:81/prefix/"), "/v1/x", {"A": "b"}, 3)
    assert head == b"POST /prefix/v1/x HTTP/1.1\r\nHost: h:81\r\nA: b\r\nContent-Length: 3\r\n\r\n"


def test_header_cannot_break_out_of_its_line():
    with pytest.raises(ValueError, match="line break"):
        request_head(Origin("http://h"), "/", {"A": "b\r\nC: d"}, 0)


def test_url_without_a_host_is_refused():
    for url in ("ftp://h", "localhost:8000", "http://"):
        with pytest.raises(ValueError, match="not an http"):
            Origin(url)


def test_https_has_its_own_port():
    origin = Origin("https://api.example.com/v1x")
    assert (origin.is_tls, origin.port, origin.host) == (True, 443, "api.example.com")
