"""What is read from, and written to, sockets."""

from typing import Any

import msgpack
import pytest

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
from router.blocks.wire import (
    END_OF_REPLAY,
    decode_frame,
    decode_replay,
    decode_replay_request,
    encode_frame,
    encode_replay,
    encode_replay_request,
)

SEQ_7 = (7).to_bytes(8, "big")
END = END_OF_REPLAY.to_bytes(8, "big")
STORED = BlockStored((1, 2), None, as_tokens([1, 2, 3, 4]), 2, medium="GPU", group_idx=0)


def test_frames_are_topic_number_payload():
    frame = Frame(7, b"payload", "kv-events")
    assert encode_frame(frame) == [b"kv-events", SEQ_7, b"payload"]
    assert decode_frame([b"kv-events", SEQ_7, b"payload"]) == frame
    assert decode_frame([SEQ_7, b"payload"]) == Frame(7, b"payload")


@pytest.mark.parametrize(
    "parts", [[], [b"x"], [b"t", b"7", b"p"], [b"t", SEQ_7 + b"\0", b"p"], [b"", b"", SEQ_7, b""]]
)
def test_other_messages_are_malformed(parts):
    with pytest.raises(MalformedFrame):
        decode_frame(parts)


@pytest.mark.parametrize("head", [[b"", b"topic"], [b""], [b"", b""], []])
def test_a_replay_is_read_with_and_without_a_topic(head):
    frame = decode_replay([*head, SEQ_7, b"payload"])
    assert frame is not None
    assert (frame.seq, frame.payload) == (7, b"payload")


@pytest.mark.parametrize(
    "parts", [[b"", END, b""], [b"", b"", END, b""], [b"", b"topic", END, b""], [b"", SEQ_7, b""]]
)
def test_a_replay_ends_with_a_number_of_all_ones_or_an_empty_payload(parts):
    assert decode_replay(parts) is None


def test_a_replay_message_without_a_number_is_malformed():
    with pytest.raises(MalformedFrame):
        decode_replay([b"", b"payload"])


def test_what_is_written_for_a_replay_is_read_again():
    frame = Frame(7, b"payload", "kv-events")
    assert decode_replay(encode_replay(frame)) == frame
    assert decode_replay(encode_replay(None)) is None
    assert decode_replay_request([b"peer", *encode_replay_request(7)]) == (b"peer", 7)


def test_a_replay_request_without_the_empty_part_is_malformed():
    with pytest.raises(MalformedFrame):
        decode_replay_request([b"peer", SEQ_7])


def test_fields_and_kinds_that_we_do_not_know_are_passed_over():
    stored: dict[str, Any] = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None}
    stored |= {"token_ids": [1, 2], "block_size": 2, "invented": {"deep": [1]}}
    payload = msgpack.packb([1.5, [stored, {"type": "BlockMoved", "to": 3}], 0, "new"])
    batch = decode_batch(payload)
    assert batch.events == (BlockStored((1,), None, as_tokens([1, 2]), 2),)
    assert batch.unknown_events == 1


def test_arrays_may_be_longer_than_we_know():
    fields = len(BlockStored.__struct_fields__)
    raw = ["BlockStored", [1], None, [1, 2], 2, *[None] * (fields - 4), "newer", "newest"]
    batch = decode_batch(msgpack.packb([1, [raw]]))
    assert batch.events == (BlockStored((1,), None, as_tokens([1, 2]), 2),)


@pytest.mark.parametrize("form", list(Form))
def test_both_forms_are_read_as_they_were_written(form):
    batch = EventBatch(1.5, (STORED, BlockRemoved((b"\xff" * 32, -1)), AllBlocksCleared()), 3)
    assert decode_batch(encode_batch(batch, form)) == batch


def test_the_map_form_leaves_out_what_vllm_leaves_out():
    raw = msgpack.unpackb(encode_batch(EventBatch(1.5, (STORED,))))[1][0]
    always = {"block_hashes", "parent_block_hash", "token_ids", "block_size"}
    always |= {"lora_id", "medium", "lora_name"}
    assert set(raw) == {"type", "group_idx"} | always


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"junk",
        msgpack.packb(7),
        msgpack.packb([1.5]),
        msgpack.packb(["now", []]),
        msgpack.packb([1.5, [[]]]),
        msgpack.packb([1.5, [{"block_hashes": []}]]),
        msgpack.packb([1.5, [["BlockStored", [1]]]]),
        msgpack.packb([1.5, [{"type": "BlockRemoved", "block_hashes": 7}]]),
    ],
)
def test_what_is_no_batch_is_malformed(payload):
    with pytest.raises(MalformedFrame):
        decode_batch(payload)


@pytest.mark.parametrize(
    ("raw", "lora_name", "extra_keys"),
    [
        (["BlockStored", [1], None, [1, 2], 2, None, "GPU", {"cache_salt": "s"}], None, [["s"]]),
        (["BlockStored", [1], 9, [1, 2], 2, None, "GPU", {"cache_salt": "s"}], None, None),
        ({"parent_block_hash": None, "cache_salt": "s"}, None, [["s"]]),
        ({"parent_block_hash": 9, "cache_salt": "s"}, None, None),
        ({"parent_block_hash": None, "cache_salt": "s", "lora_name": "x"}, "x", [["x", "s"]]),
        ({"parent_block_hash": None, "cache_salt": None, "lora_name": "x"}, "x", None),
    ],
)
def test_the_salt_of_sglang_is_read_as_vllm_would_say_it(raw, lora_name, extra_keys):
    if isinstance(raw, dict):
        raw |= {"type": "BlockStored", "block_hashes": [1], "token_ids": [1, 2], "block_size": 2}
    (event,) = decode_batch(msgpack.packb([1.5, [raw], 0])).events
    assert isinstance(event, BlockStored)
    assert (event.lora_name, event.extra_keys) == (lora_name, extra_keys)
