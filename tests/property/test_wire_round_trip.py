"""Whatever batch we write, in either form, is the batch that we read."""

from contextlib import suppress
from unittest.mock import patch

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import DecodeError
from msgspec.structs import asdict

from router.blocks import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    Form,
    Frame,
    MalformedFrame,
    as_tokens,
    decode_batch,
    encode_batch,
)
from router.blocks.events import Event
from router.blocks.layouts import read_batch, read_hashes, read_ids
from router.blocks.steps import EventReader
from router.blocks.wire import (
    decode_any_batch,
    decode_frame,
    decode_replay,
    encode_frame,
    encode_replay,
)

NAMES = st.none() | st.text(max_size=8)
NUMBERS = st.none() | st.integers(0, 100)
HANDLES = st.integers(-(2**63), 2**64 - 1) | st.binary(min_size=16, max_size=32)
HASHES = st.lists(HANDLES, max_size=5).map(tuple)
IDS = st.lists(st.integers(0, 2**32 - 1), max_size=20)
KEYS = st.none() | st.lists(st.none() | st.lists(st.text(max_size=4), max_size=2), max_size=4)
STORED = st.builds(
    BlockStored,
    block_hashes=HASHES,
    parent_block_hash=st.none() | HANDLES,
    token_ids=IDS.map(as_tokens),
    block_size=st.integers(0, 256),
    lora_id=NUMBERS,
    medium=NAMES,
    lora_name=NAMES,
    extra_keys=KEYS,
    group_idx=NUMBERS,
    kv_cache_spec_kind=NAMES,
    kv_cache_spec_sliding_window=NUMBERS,
    locality=NAMES,
    ownership=NAMES,
    session_id=NAMES,
    lookahead_token_ids=st.none() | st.lists(IDS, max_size=2),
)
REMOVED = st.builds(
    BlockRemoved,
    block_hashes=HASHES,
    medium=NAMES,
    group_idx=NUMBERS,
    locality=NAMES,
    ownership=NAMES,
)
EVENTS = st.lists(STORED | REMOVED | st.just(AllBlocksCleared()), max_size=5).map(tuple)
BATCHES = st.builds(
    EventBatch,
    ts=st.floats(allow_nan=False),
    events=EVENTS,
    data_parallel_rank=NUMBERS,
    unknown_events=st.just(0),
)
FRAMES = st.builds(
    Frame,
    seq=st.integers(0, 2**64 - 2),
    payload=st.binary(min_size=1, max_size=20),
    topic=st.text(max_size=8),
)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)
ODD_FIELDS = st.dictionaries(
    st.sampled_from([*BlockStored.__struct_fields__, "type", "cache_salt", "newer"]),
    VALUES,
    max_size=2,
)
"""Fields of an event that hold something else than they should."""
WIDTHS: dict[int, tuple[int, bool]] = {
    0xCC: (1, False), 0xCD: (2, False), 0xCE: (4, False), 0xCF: (8, False),
    0xD0: (1, True), 0xD1: (2, True), 0xD2: (4, True), 0xD3: (8, True),
}  # fmt: skip


@st.composite
def packed_ints(draw: st.DrawFn) -> tuple[bytes, int]:
    """A number in any of the ways in which msgpack may write it."""
    kind = draw(st.sampled_from([None, *WIDTHS]))
    if kind is None:
        value = draw(st.integers(0, 127))
        return bytes((value,)), value
    width, is_signed = WIDTHS[kind]
    sizes = [8 * each - is_signed for each in (1, 2, 4, 8) if each <= width]
    value = draw(st.integers(0, 2 ** draw(st.sampled_from(sizes)) - 1))
    return bytes((kind,)) + value.to_bytes(width, "big", signed=is_signed), value


@given(batch=BATCHES, form=st.sampled_from(Form))
def test_batches_survive_both_forms(batch, form):
    assert decode_batch(encode_batch(batch, form)) == batch


@given(frame=FRAMES)
def test_frames_survive_publishing_and_replay(frame):
    assert decode_frame(encode_frame(frame)) == frame
    assert decode_replay(encode_replay(frame)) == frame


@given(batch=BATCHES, form=st.sampled_from(Form), cut=st.none() | st.integers(0, 200))
def test_decoding_in_steps_ends_as_decoding_in_one_go(batch, form, cut):
    payload = encode_batch(batch, form)[:cut]
    assert in_steps(payload) == in_one_go(payload)


@given(payload=st.binary(max_size=60))
def test_decoding_any_bytes_in_steps_ends_as_decoding_them_in_one_go(payload):
    assert in_steps(payload) == in_one_go(payload)


@given(batch=BATCHES, form=st.sampled_from(Form), odd=ODD_FIELDS, more=st.lists(VALUES, max_size=3))
def test_what_is_read_by_its_layout_is_what_is_read_value_by_value(batch, form, odd, more):
    ts, events, rank = msgpack.unpackb(encode_batch(batch, form))
    for event in events[:1]:
        if form is Form.MAP:
            event |= odd
        elif more:
            event += more
    payload = msgpack.packb([ts, events, rank, *more[:1]])
    if (read := read_batch(payload)) is not None:
        assert repr(read) == repr(decode_any_batch(payload))


@given(batch=BATCHES, form=st.sampled_from(Form))
def test_what_engines_send_is_read_by_its_layout(batch, form):
    assert read_batch(encode_batch(batch, form)) == batch


@st.composite
def long_batches(draw: st.DrawFn) -> bytes:
    """Of one long event or two, as an engine would send them but for a byte, or for the end."""
    hashes = draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5)) * 20
    ids = draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5)) * 20
    parent = draw(st.none() | st.integers(0, 2**64 - 1) | st.binary(min_size=32, max_size=32))
    event = BlockStored(tuple(hashes), parent, ids, 16, draw(st.none() | st.integers(0, 9)), "GPU")
    more: list[tuple[Event, ...]] = [(), (event,), (BlockRemoved((1, 2)),)]
    events = (event, *draw(st.sampled_from(more)))
    form = draw(st.sampled_from(Form))
    payload = bytearray(encode_batch(EventBatch(0.5, events, 0), form))
    for at, byte in draw(st.lists(st.tuples(st.integers(0, 199), st.integers(0, 255)), max_size=1)):
        payload[at % len(payload)] = byte
    return bytes(payload[: draw(st.none() | st.integers(0, len(payload)))])


def as_lists(batch: EventBatch) -> str:
    fields = [asdict(event) for event in batch.events]
    for values in fields:
        values["block_hashes"] = list(values.get("block_hashes", ()))
    kinds = [type(event) for event in batch.events]
    return repr((batch.ts, kinds, fields, batch.data_parallel_rank, batch.unknown_events))


@given(payload=long_batches())
def test_a_long_event_is_read_by_its_layout_as_value_by_value(payload):
    if (read := read_batch(payload)) is not None:
        with suppress(MalformedFrame):  # a name that nobody asks for need not be text
            assert as_lists(read) == as_lists(decode_any_batch(payload))


@given(form=st.sampled_from(Form), parent=st.sampled_from([None, 0, 2**64 - 1]))
def test_a_long_event_that_is_whole_is_read_by_its_layout(form, parent):
    event = BlockStored(tuple(range(2**60, 2**60 + 64)), parent, list(range(1024)), 16, None, "GPU")
    read = read_batch(encode_batch(EventBatch(0.5, (event, event), 0), form))
    assert read is not None
    for each in read.events:
        assert isinstance(each, BlockStored)
        assert list(each.block_hashes) == list(event.block_hashes)
        assert list(each.token_ids) == event.token_ids
        assert each.parent_block_hash == parent


@given(
    numbers=st.lists(packed_ints(), max_size=70),
    times=st.sampled_from([1, 20, 1000]),
    odd=st.none() | st.integers(-(2**63), -1) | st.integers(2**32, 2**64 - 1) | st.text(max_size=3),
    cut=st.integers(0, 3),
)
def test_token_ids_are_read_however_they_are_written(numbers, times, odd, cut):
    numbers = numbers * times
    values = [value for _, value in numbers]
    odds = [] if odd is None else [odd]
    count = len(values) + len(odds)
    raw = (
        b"\xdd" + count.to_bytes(4, "big")
        if count > 2**16 - 1
        else b"\xdc" + count.to_bytes(2, "big")
    )
    raw += b"".join(packed for packed, _ in numbers) + b"".join(map(msgpack.packb, odds))
    assert list(read_ids(raw)) == values + odds
    if cut and len(raw) > cut:
        with suppress(ValueError):
            read_ids(raw[:-cut])  # does not look behind its end


@given(
    numbers=st.lists(packed_ints(), min_size=48, max_size=70),
    odd=st.none()
    | st.integers(-(2**63), -1)
    | st.integers(2**63, 2**64 - 1)
    | st.binary(max_size=3),
)
def test_hashes_are_read_however_they_are_written(numbers, odd):
    values = [value for _, value in numbers] + ([] if odd is None else [odd])
    raw = b"\xdc" + len(values).to_bytes(2, "big") + b"".join(packed for packed, _ in numbers)
    raw += b"" if odd is None else msgpack.packb(odd)
    assert list(read_hashes(raw)) == values
    with pytest.raises(DecodeError):
        read_hashes(raw[:-1])
    with pytest.raises(DecodeError):
        read_hashes(b"\xdc" + (len(values) + 1).to_bytes(2, "big") + raw[3:] + b"\xc0")


def in_one_go(payload: bytes) -> str:
    """The events as text (two that are not a number differ), or "malformed"."""
    try:
        batch = decode_batch(payload)
    except MalformedFrame:
        return "malformed"
    return repr((list(batch.events), batch.unknown_events))


def in_steps(payload: bytes) -> str:
    """The same, by way of the steps that only large batches are read in."""
    reader = EventReader(payload)
    try:
        with patch("router.blocks.steps.SMALL_BYTES", -1):
            events = [event for event in reader if event is not None]
    except MalformedFrame:
        return "malformed"
    return repr((events, reader.unknown_events))


@given(payload=st.binary(max_size=60))
def test_any_bytes_are_a_batch_or_malformed(payload):
    try:
        batch = decode_batch(payload)
    except MalformedFrame:
        return
    assert isinstance(batch, EventBatch)
