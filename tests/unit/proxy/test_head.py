import pytest

from router.proxy.head import BadReply, Heads, looks_like_http, parse_head


def head(*lines: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in (b"HTTP/1.1 200 OK", *lines))


def test_status_reason_and_type_are_read():
    parsed = parse_head(b"HTTP/1.1 404 Not Found\r\nContent-Type: Text/Event-Stream; x=y\r\n")
    assert (parsed.status, parsed.reason) == (404, b"Not Found")
    assert parsed.content_type == b"text/event-stream"


@pytest.mark.parametrize(
    "line", [b"HTTP/1.1 200\r\n", b"HTTP/1.1 200 \r\n", b"HTTP/1.0 200 O K\r\n"]
)
def test_reason_may_be_missing_or_have_spaces(line):
    assert parse_head(line).status == 200


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/2 200 OK\r\n",
        b"HTTP/1.1 600 OK\r\n",
        b"HTTP/1.1 20 OK\r\n",
        b"HTTP/1.1  200 OK\r\n",
        b"http/1.1 200 OK\r\n",
        head(b" folded: before"),
        head(b"a: b", b" folded"),
        head(b"a: b", b"\tfolded"),
        head(b"no colon"),
        head(b"space : before colon"),
        head(b": no name"),
        head(b"a: nul\x00"),
        head(b"a: cr\rin it"),
        head(b"a: lf\nin: it"),
        head(b"content-length: 5", b"content-length: 6"),
        head(b"content-length: 5, 6"),
        head(b"content-length: +5"),
        head(b"content-length: 5_0"),
        head(b"content-length: -1"),
        head(b"content-length:"),
        head(b"content-length: 9999999999999999999"),
        head(b"content-length: 5", b"transfer-encoding: chunked"),
        head(b"transfer-encoding: gzip, chunked"),
        head(b"transfer-encoding: gzip", b"transfer-encoding: chunked"),
        head(b"transfer-encoding: identity"),
        b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n",
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(text):
    with pytest.raises(BadReply):
        parse_head(text)


def test_the_same_length_twice_is_one_length():
    assert parse_head(head(b"content-length: 5", b"Content-Length: 5")).length == 5


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        (head(), True),
        (head(b"connection: Close"), False),
        (head(b"connection: x", b"connection: close"), False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\n", True),
    ],
)
def test_keep_alive_follows_version_and_connection(text, keeps):
    assert parse_head(text).keeps_alive is keeps


def test_no_body_for_head_and_for_204_and_304():
    assert parse_head(head()).has_body("POST")
    assert not parse_head(head(b"content-length: 5")).has_body("HEAD")
    assert not parse_head(b"HTTP/1.1 204 No\r\n").has_body("POST")
    assert not parse_head(b"HTTP/1.1 304 No\r\n").has_body("POST")


@pytest.mark.parametrize(
    ("data", "verdict"), [(b"", True), (b"HT", True), (b"HTTP/1.1 2", True), (b"SSH-2", False)]
)
def test_garbage_is_known_by_its_first_bytes(data, verdict):
    assert looks_like_http(data) is verdict


def test_a_remembered_head_differs_in_its_length_only():
    heads = Heads()
    one = heads.parse(head(b"content-length: 5", b"server: e"))
    other = heads.parse(head(b"content-length: 66", b"server: e"))
    assert (one.length, other.length) == (5, 66)
    assert (other.status, other.keeps_alive, other.is_chunked) == (200, True, False)
    assert heads.parse(head(b"server: e")).length is None
    assert heads.parse(head(b"content-length: 5", b"server: f")).lines[1] == (
        b"server",
        b"server: f",
    )


def test_two_lengths_are_compared_however_often_they_came_before():
    heads = Heads()
    for _ in range(2):
        assert heads.parse(head(b"content-length: 5", b"content-length: 5")).length == 5
    with pytest.raises(BadReply):
        heads.parse(head(b"content-length: 6", b"content-length: 5"))
    with pytest.raises(BadReply):
        heads.parse(head(b"content-length: 5", b"content-length : 5"))


def test_few_heads_are_remembered():
    heads = Heads(most=3)
    for number in range(20):
        assert heads.parse(head(b"date: %d" % number, b"content-length: 1")).length == 1
    assert len(heads._known) <= 3
