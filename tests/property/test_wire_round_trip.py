"""Whatever batch we write, in either form, is the batch that we read."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from router.blocks import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    Form,
    Frame,
    MalformedFrame,
    decode_batch,
    encode_batch,
)
from router.blocks.steps import EventReader
from router.blocks.wire import decode_frame, decode_replay, encode_frame, encode_replay

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
    token_ids=IDS,
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
