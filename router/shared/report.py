"""What a router tells the others: msgpack arrays, to which later versions append."""

import msgspec

from router.index.load import Load
from router.replicas import ReplicaId


class ReplicaReport(msgspec.Struct, frozen=True, array_like=True):
    """One router's own load on one replica; fields as in `Load`."""

    replica_id: str
    queued_tokens: int = 0
    wait_ms: float = 0.0
    running: int = 0
    waiting: int = 0
    recent_ms: float = 0.0


class Report(msgspec.Struct, frozen=True, array_like=True):
    """`number` counts up: an old report that is read again has the same one."""

    number: int
    loads: tuple[ReplicaReport, ...] = ()


_decoder = msgspec.msgpack.Decoder(Report)


def encode_report(number: int, loads: dict[ReplicaId, Load]) -> bytes:
    rows = [
        ReplicaReport(
            replica_id,
            load.queued_tokens,
            round(load.wait_ms, 1),
            load.running,
            load.waiting,
            round(load.recent_ms, 1),
        )
        for replica_id, load in loads.items()
    ]
    return msgspec.msgpack.encode(Report(number, tuple(rows)))


def decode_report(data: bytes) -> Report | None:
    """None for what isn't one: another router's mistake must not be ours."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None
