"""Server-sent events, whatever the network makes of them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.sse import MAX_EVENT_BYTES, Event, EventParser, EventTooLong

STREAMS = [
    b'data: {"a": 1}\n\ndata: {"b": 2}\n\ndata: [DONE]\n\n',
    b'data: {"a": 1}\r\n\r\ndata: {"b": 2}\r\n\r\ndata: [DONE]\r\n\r\n',
    b'data: {"a": 1}\r\rdata: {"b": 2}\r\rdata: [DONE]\r\r',
    b': hello\n\ndata:{"a": 1}\nid: 7\n\n: ping\ndata: {"b": 2}\nretry: 3\n\n\n\ndata: [DONE]\n\n',
    b'\xef\xbb\xbfdata: {"a": 1}\n\ndata: {"b": 2}\n\ndata: [DONE]\n\n',
]
EXPECTED = [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(ends)]


@settings(deadline=None)
@given(st.sampled_from(STREAMS), st.lists(st.integers(0, 10_000), max_size=40))
def test_any_cutting_of_any_line_ending_gives_the_same_events(stream, places):
    parser = EventParser()
    events = [event for part in cut(stream, places) for event in parser.feed(part)]
    assert [event.data for event in events] == EXPECTED


def test_one_byte_at_a_time_gives_the_same_events():
    for stream in STREAMS:
        parser = EventParser()
        events = [event for byte in stream for event in parser.feed(bytes([byte]))]
        assert [event.data for event in events] == EXPECTED


def test_event_is_there_as_soon_as_its_last_byte_is():
    parser = EventParser()
    assert parser.feed(b"data: x\r\n\r") == [Event(b"x")]
    assert parser.feed(b"\ndata: y\n") == []
    assert parser.feed(b"\n") == [Event(b"y")]


def test_lines_of_one_event_are_joined_and_its_name_is_kept():
    assert EventParser().feed(b"event: error\ndata: a\ndata: b\n\n") == [Event(b"a\nb", b"error")]


def test_last_event_without_an_empty_line_comes_at_the_end():
    parser = EventParser()
    assert parser.feed(b"data: [DONE]") == []
    assert parser.close() == [Event(b"[DONE]")]
    assert parser.close() == []


def test_endless_event_is_refused():
    parser = EventParser()
    assert parser.feed(b"x" * MAX_EVENT_BYTES) == []
    with pytest.raises(EventTooLong):
        parser.feed(b"x")
