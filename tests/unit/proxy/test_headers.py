import pytest

from router.proxy.head import parse_head
from router.proxy.headers import ended, ours_of, rank_header, reply_head, request_head
from tests.support.spliced import FakeRequest


def lines(head: bytes) -> list[bytes]:
    assert head.endswith(b"\r\n\r\n")
    return head[:-4].split(b"\r\n")


def forwarded(*headers: tuple[bytes, bytes], method="POST", body_bytes=2, rank=None) -> list[bytes]:
    request = FakeRequest(method=method, raw_headers=headers).as_request()
    added = () if rank is None else (rank_header(rank),)
    head = request_head(request, target=b"/x?y=1", host=b"e:1", added=added)
    return lines(ended(head, method, body_bytes))


def test_own_headers_pass_in_order_and_unchanged():
    sent = forwarded((b"Authorization", b"Bearer k"), (b"X-Session-ID", b"s"), (b"X-a", b"\xe9"))
    assert sent == [
        b"POST /x?y=1 HTTP/1.1",
        b"Host: e:1",
        b"Authorization: Bearer k",
        b"X-Session-ID: s",
        b"X-a: \xe9",
        b"Content-Length: 2",
    ]


@pytest.mark.parametrize(
    "name",
    [
        b"Host",
        b"Connection",
        b"Keep-Alive",
        b"Proxy-Authorization",
        b"TE",
        b"Trailer",
        b"Transfer-Encoding",
        b"Upgrade",
        b"Content-Length",
        b"Content-Encoding",
        b"Expect",
        b"Accept-Encoding",
        b"X-Warmgate-Replica",
        b"x-warmgate-anything",
    ],
)
def test_what_ends_here_is_not_forwarded(name):
    assert len(forwarded((name, b"1"))) == 3


def test_headers_named_in_connection_are_not_forwarded():
    assert len(forwarded((b"Connection", b"close, X-Mine"), (b"x-mine", b"1"))) == 3


def test_what_is_added_goes_in_the_place_of_the_clients_own():
    request = FakeRequest(raw_headers=((b"TraceParent", b"theirs"), (b"X-A", b"1"))).as_request()
    head = request_head(request, target=b"/", host=b"e", added=[(b"traceparent", b"ours")])
    head = ended(head, "POST", 2)
    assert [x for x in lines(head) if b"trace" in x.lower()] == [b"traceparent: ours"]
    assert b"X-A: 1" in lines(head)


def test_a_rank_replaces_the_clients_own():
    header = (b"X-Data-Parallel-Rank", b"7")
    assert b"X-Data-Parallel-Rank: 7" in forwarded(header)
    assert [x for x in forwarded(header, rank=0) if b"rank" in x.lower()] == [
        b"X-data-parallel-rank: 0"
    ]


def test_a_get_without_body_has_no_length():
    assert len(forwarded(method="GET", body_bytes=0)) == 2
    assert b"Content-Length: 0" in forwarded(method="POST", body_bytes=0)


def test_the_engines_headers_pass_but_for_framing_and_ours():
    head = parse_head(
        b"HTTP/1.1 200 Fine\r\nServer: uvicorn\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n"
        b"Transfer-Encoding: chunked\r\nX-Request-Id: theirs\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n"
    )
    ours = ours_of([("X-Request-ID", "ours")])
    sent = lines(reply_head(head, ours, b"Content-Length: 3\r\n"))
    assert sent == [
        b"HTTP/1.1 200 Fine",
        b"Server: uvicorn",
        b"Set-Cookie: a",
        b"Set-Cookie: b",
        b"X-Request-ID: ours",
        b"Content-Length: 3",
    ]


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "\x00"])
def test_a_header_of_ours_cannot_split_the_reply(value):
    with pytest.raises(ValueError, match="control character"):
        ours_of([("x-request-id", value)])


def test_a_head_that_is_used_again_is_rewritten_for_the_names_that_are_ours_now():
    head = parse_head(b"HTTP/1.1 200 OK\r\nX-A: theirs\r\nX-B: theirs\r\n")
    for name in ("x-a", "x-b", "x-a"):
        sent = lines(reply_head(head, ours_of([(name, "ours")]), b""))
        assert sent.count(f"{name}: ours".encode()) == 1
        assert [line[-6:] for line in sent if b"theirs" in line] == [b"theirs"]
