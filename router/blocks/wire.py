"""ZeroMQ messages and msgpack payloads, in every layout that vLLM and SGLang have published.

Two forms of event exist: an array with the tag first (vLLM 0.9 to 0.23, SGLang to 0.5), to which
fields were only ever appended, and a map with the key "type" (since). Reading accepts both, any
subset of the known fields, and more fields than we know.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgpack

from router.blocks.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch
from router.blocks.layouts import as_ids, read_batch

END_OF_REPLAY: Final = 2**64 - 1
SEQ_BYTES: Final = 8


class MalformedFrame(ValueError):
    """A message that no known engine sends. The stream it came from can't be trusted further."""


class Form(StrEnum):
    """How events are laid out in a payload."""

    ARRAY = "array"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: the batch's place in its publisher's sequence, and the batch, still packed."""

    seq: int
    payload: bytes
    topic: str = ""


_KINDS: Final[dict[str, type[BlockStored | BlockRemoved | AllBlocksCleared]]] = {
    kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)
}
_NAMES: Final = {tag: kind.__struct_fields__ for tag, kind in _KINDS.items()}
_KNOWN: Final = {tag: frozenset(names) for tag, names in _NAMES.items()}
# vLLM writes these even when they are nil; all later fields only when they differ from nil.
_ALWAYS: Final = frozenset(
    (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
    )
)


def decode_batch(payload: bytes) -> EventBatch:
    """Unpack one batch. MalformedFrame if it is none."""
    batch = read_batch(payload)
    return decode_any_batch(payload) if batch is None else batch


def decode_any_batch(payload: bytes) -> EventBatch:
    """The same, value by value: whatever fields of events hold. MalformedFrame."""
    try:
        raw = msgpack.unpackb(payload, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as exc:
        raise MalformedFrame(f"no batch of KV events: {type(exc).__name__}: {exc}") from exc
    try:
        ts, raw_events, *rest = raw
        events = [as_event(raw_event) for raw_event in raw_events]
        known = tuple(event for event in events if event is not None)
        rank = rest[0] if rest else None
        return EventBatch(float(ts), known, rank, len(events) - len(known))
    except (ValueError, TypeError, KeyError, IndexError) as exc:
        raise MalformedFrame(f"no batch of KV events: {type(exc).__name__}: {exc}") from exc


def encode_batch(batch: EventBatch, form: Form = Form.MAP) -> bytes:
    """Pack a batch in vLLM's current layout, or in the older array form with all fields."""
    encode = _as_map if form is Form.MAP else _as_array
    events = [encode(event) for event in batch.events]
    packed: bytes = msgpack.packb([batch.ts, events, batch.data_parallel_rank])
    return packed


def decode_frame(parts: Sequence[bytes]) -> Frame:
    """A PUB message: topic, sequence number, payload (the topic is missing in some layouts)."""
    if len(parts) not in (2, 3) or len(parts[-2]) != SEQ_BYTES:
        raise MalformedFrame(f"expected [topic, 8-byte sequence, payload], got {_shape(parts)}")
    topic = parts[0].decode("utf-8", "replace") if len(parts) == 3 else ""
    return Frame(int.from_bytes(parts[-2], "big"), parts[-1], topic)


def encode_frame(frame: Frame) -> list[bytes]:
    """The three parts of a PUB message."""
    return [frame.topic.encode(), frame.seq.to_bytes(SEQ_BYTES, "big"), frame.payload]


def encode_replay_request(since: int) -> list[bytes]:
    """What a DEALER sends to ask for all batches from `since` on."""
    return [b"", since.to_bytes(SEQ_BYTES, "big")]


def decode_replay_request(parts: Sequence[bytes]) -> tuple[bytes, int]:
    """What a ROUTER receives: the peer's identity and the first sequence number wanted."""
    if len(parts) != 3 or parts[1] != b"" or len(parts[2]) != SEQ_BYTES:
        raise MalformedFrame(f"expected [identity, '', 8-byte sequence], got {_shape(parts)}")
    return parts[0], int.from_bytes(parts[2], "big")


def decode_replay(parts: Sequence[bytes]) -> Frame | None:
    """One message of a replay as a DEALER gets it; None is the end.

    vLLM: ["", seq, payload] to 0.25, ["", topic, seq, payload] since; both end with a sequence
    number of all ones (read as -1 by some) and an empty payload. A REQ socket strips the "".
    """
    if len(parts) < 2 or len(parts[-2]) != SEQ_BYTES:
        raise MalformedFrame(f"expected [..., 8-byte sequence, payload], got {_shape(parts)}")
    seq = int.from_bytes(parts[-2], "big")
    if seq == END_OF_REPLAY or not parts[-1]:
        return None
    topic = parts[-3].decode("utf-8", "replace") if len(parts) > 2 else ""
    return Frame(seq, parts[-1], topic)


def encode_replay(frame: Frame | None) -> list[bytes]:
    """One message of a replay in vLLM's current layout; None ends it."""
    if frame is None:
        return [b"", b"", END_OF_REPLAY.to_bytes(SEQ_BYTES, "big"), b""]
    return [b"", *encode_frame(frame)]


def as_event(raw: Any) -> Event | None:
    """Unpacked values as an event; None if it is of a kind that we don't know.

    TypeError, ValueError, LookupError: it is none.
    """
    if type(raw) is dict and raw.get("type") == "BlockRemoved":  # most events, one per block
        return BlockRemoved(
            tuple(raw["block_hashes"]),
            raw.get("medium"),
            raw.get("group_idx"),
            raw.get("locality"),
            raw.get("ownership"),
        )
    tag, values = _tagged_values(raw)
    kind = _KINDS.get(tag)
    if kind is None:
        return None
    if "block_hashes" in values:
        values["block_hashes"] = tuple(values["block_hashes"])
    if "token_ids" in values:
        values["token_ids"] = as_ids(values["token_ids"])
    salt = _sglang_salt(raw)
    if salt is not None and kind is BlockStored:
        _place_salt(values, salt)
    return kind(**values)


def _sglang_salt(raw: Any) -> str | None:
    """SGLang names a salt in a field of its own: of the map, or of a map at the array's end."""
    named = raw if isinstance(raw, Mapping) else raw[-1]
    return named.get("cache_salt") if isinstance(named, Mapping) else None


def _place_salt(values: dict[str, Any], salt: str) -> None:
    """Put a salt where vLLM has it: in the keys of a prompt's first block."""
    if isinstance(values.get("lora_name"), Mapping):  # SGLang's array has the map in this place
        values["lora_name"] = None
    if values["parent_block_hash"] is None and not values.get("extra_keys"):
        adapter = values.get("lora_name")
        values["extra_keys"] = [[salt] if adapter is None else [adapter, salt]]


def _tagged_values(raw: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(raw, Mapping):
        tag = raw["type"]
        known = _KNOWN.get(tag, frozenset())
        return tag, {name: value for name, value in raw.items() if name in known}
    tag, *values = raw
    return tag, dict(zip(_NAMES.get(tag, ()), values, strict=False))


def _as_map(event: Event) -> dict[str, Any]:
    tag = type(event).__name__
    return {"type": tag} | {
        name: _plain(value)
        for name in _NAMES[tag]
        if (value := getattr(event, name)) is not None or name in _ALWAYS
    }


def _as_array(event: Event) -> list[Any]:
    tag = type(event).__name__
    return [tag, *(_plain(getattr(event, name)) for name in _NAMES[tag])]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, array) else value


def _shape(parts: Sequence[bytes]) -> str:
    return f"{len(parts)} parts of {[len(part) for part in parts]} bytes"
