"""However an engine's bytes are cut on their way, the client gets the same body."""

import asyncio
import dataclasses
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from router.openai.usage import Usage
from router.proxy.reply import Limits
from tests.support.raw_http import (
    DONE,
    ROLE,
    STREAM_HEAD,
    capture,
    chunk,
    event,
    json_reply,
    split_reply,
)
from tests.support.spliced import Spliced, splice

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'
LIMITS = Limits()
cuts = st.lists(st.integers(0, 1 << 20), max_size=25)
texts = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters='"\\'), max_size=30
)


def pieces_of(raw: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(raw), *(cut % len(raw) for cut in at)})
    return [raw[a:b] for a, b in itertools.pairwise(edges)]


def fed(pieces: list[bytes], limits: Limits = LIMITS) -> Spliced:
    return asyncio.run(splice(pieces, limits=limits))


def check(result: Spliced, body: bytes, usage: Usage | None) -> None:
    assert result.exchange.failure is None
    status, _, got, whole = split_reply(result.sent)
    assert (status, got, whole) == (200, body, True)
    assert result.exchange.splice is not None
    assert result.exchange.splice.usage() == usage
    assert result.notes.calls == [("first_byte", "r1")]


@settings(deadline=None)
@given(st.lists(texts, min_size=1, max_size=8), cuts, cuts, st.sampled_from([64 * 1024, 40]))
def test_streams_survive_any_chunks_in_any_segments(words, chunk_cuts, segment_cuts, held_bytes):
    body = ROLE + b"".join(event(word) for word in words) + USAGE + DONE
    chunks = b"".join(chunk(piece) for piece in pieces_of(body, chunk_cuts)) + b"0\r\n\r\n"
    limits = dataclasses.replace(LIMITS, held_bytes=held_bytes)
    result = fed(pieces_of(STREAM_HEAD + chunks, segment_cuts), limits)
    check(result, body, Usage(9, 2, None))


@settings(deadline=None, max_examples=40)
@given(cuts, st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_streams_with_one_event_per_chunk_survive_any_segments(segment_cuts, ending):
    events = [(each[:-2] + ending) for each in (ROLE, event("a"), event("b"), USAGE, DONE)]
    raw = STREAM_HEAD + b"".join(map(chunk, events)) + b"0\r\n\r\n"
    check(fed(pieces_of(raw, segment_cuts)), b"".join(events), Usage(9, 2, None))


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=300), cuts, st.sampled_from([64 * 1024, 50, 0]))
def test_json_bodies_survive_any_segments(body, segment_cuts, held_bytes):
    limits = dataclasses.replace(LIMITS, held_bytes=held_bytes)
    check(fed(pieces_of(json_reply(body), segment_cuts), limits), body, None)


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(
        ["chat-stream-usage", "completion-stream", "chat-stream-continuous-usage-tokenids"]
    ),
    cuts,
)
def test_real_streams_survive_any_segments(name, segment_cuts):
    raw = capture(name)
    once = fed([raw])
    assert once.exchange.splice is not None
    check(fed(pieces_of(raw, segment_cuts)), split_reply(raw)[2], once.exchange.splice.usage())


def test_a_stream_one_byte_at_a_time():
    raw = capture("chat-stream-usage")
    result = fed([raw[at : at + 1] for at in range(len(raw))])
    check(result, split_reply(raw)[2], Usage(24, 7, 0))


@settings(deadline=None, max_examples=60)
@given(cuts, st.integers(1, 1 << 20))
def test_a_stream_cut_anywhere_is_never_a_silent_truncation(segment_cuts, length):
    raw = STREAM_HEAD + b"".join(map(chunk, [ROLE, event("a"), event("b"), DONE])) + b"0\r\n\r\n"
    length = 1 + length % (len(raw) - 1)
    result = asyncio.run(splice(pieces_of(raw[:length], segment_cuts), then_lost=True))
    assert result.exchange.failure is not None
    if result.sent:
        body = split_reply(result.sent)[2]
        events = body.split(b"\n\n")
        assert events[-2].startswith(b'data: {"error"')
        assert all(each + b"\n\n" in ROLE + event("a") + event("b") + DONE for each in events[:-2])
