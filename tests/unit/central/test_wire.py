"""Frames of routers and the central index: whole, cut anywhere, and from strangers."""

import struct
from array import array
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.blocks.hashing import HASH_CODE
from router.central import BadAddress, parse_address, wire
from router.central.wire import BadFrame, Found, Hit, Kind, ReplicaState, Splitter, StateNews
from router.events import IngestCounters, Trust
from router.index.tiers import Load

HASHES = st.lists(st.integers(0, 2**64 - 1), max_size=40).map(partial(array, HASH_CODE))
STATE = ReplicaState(
    "r1", Trust.EXACT, "", 2, 100, [16], is_learning=False, wants_prompts=False, restored=7,
    counters=IngestCounters(frames=12, gaps=1),
)  # fmt: skip


def bodies(data: bytes, max_bytes: int = wire.MAX_BYTES) -> list[tuple[int, bytes]]:
    return list(Splitter(max_bytes).feed(data))


def body(data: bytes, kind: Kind) -> bytes:
    ((found, content),) = bodies(data)
    assert found == kind
    return content


@given(st.integers(0, 2**32 - 1), st.lists(HASHES, max_size=4))
def test_a_question_is_read_as_it_was_put(number, prefixes):
    assert wire.read_ask(body(wire.ask(number, prefixes), Kind.ASK)) == (number, prefixes)


@given(HASHES, st.text(min_size=1, max_size=20), st.none() | st.integers(0, 10**9))
def test_a_served_prompt_is_read_as_it_was_told(prefix, replica_id, hit_tokens):
    told = wire.served(replica_id, prefix, hit_tokens)
    assert wire.read_served(body(told, Kind.SERVED)) == (replica_id, prefix, hit_tokens)


def test_answers_hits_and_news_are_read_as_they_were_told():
    found = [Found({"r1": 3, "r2": 1}, {"r1": (Load("cpu", 2, 0.01),)}), Found({})]
    assert wire.read_answer(body(wire.answer(7, found), Kind.ANSWER)) == (7, found)
    hit = Hit("r1", 160, 32)
    assert wire.read_hit(body(wire.hit(hit), Kind.HIT)) == hit
    news = StateNews([STATE], ["r2"])
    assert wire.read_news(body(wire.news(news), Kind.STATE)) == news


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_frames_are_the_same_however_the_stream_is_cut(cuts):
    whole = wire.ask(1, [[1, 2, 3]]) + wire.hit(Hit("r1", 16, 0)) + wire.ask(2, [[], [9]])
    splitter, at = Splitter(wire.MAX_BYTES), 0
    found: list[tuple[int, bytes]] = []
    for cut in [*cuts, len(whole)]:
        found += splitter.feed(whole[at : at + cut])
        at += cut
    found += splitter.feed(whole[at:])
    assert found == bodies(whole)


def test_a_frame_longer_than_allowed_is_refused_by_its_head_alone():
    with pytest.raises(BadFrame):
        bodies(struct.pack("<IB", wire.STRANGER_BYTES + 1, Kind.ASK), wire.STRANGER_BYTES)
    with pytest.raises(BadFrame):
        bodies(struct.pack("<IB", 0, Kind.ASK))


@given(st.binary(max_size=80))
def test_bytes_that_mean_nothing_raise_nothing_else(raw):
    for read in (
        wire.read_ask, wire.read_answer, wire.read_news, wire.read_hit, wire.read_served,
        wire.read_hello,
    ):  # fmt: skip
        try:
            read(raw)
        except BadFrame:
            continue


def test_a_question_that_promises_more_blocks_than_it_has_is_refused():
    with pytest.raises(BadFrame):
        wire.read_ask(struct.pack("<IHI", 1, 1, 1000) + bytes(80))


def test_fields_of_a_later_version_are_skipped():
    import msgspec

    longer = msgspec.msgpack.encode([[[*msgspec.to_builtins(STATE), "new"]], [], "new"])
    assert wire.read_news(longer) == StateNews([STATE], [])


def test_another_version_says_so():
    other = struct.pack(f"<4sH{wire.NONCE_BYTES}s", wire.MAGIC, wire.VERSION + 1, bytes(32))
    with pytest.raises(BadFrame, match=f"version {wire.VERSION + 1}"):
        wire.read_hello(other)


@pytest.mark.parametrize("text", ["tcp://10.0.0.1:7000", "tcp://[::1]:7000", "unix:/run/x/index"])
def test_addresses_are_shown_as_they_were_read(text):
    assert str(parse_address(text)) == text


@pytest.mark.parametrize("text", ["", "unix:", "tcp://host", "tcp://host:x", "http://h:1", "h:1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(BadAddress):
        parse_address(text)
