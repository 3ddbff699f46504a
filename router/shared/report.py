"""What a router tells the others: msgpack arrays, to which later versions append."""

from collections.abc import Mapping, Sequence

import msgspec

from router.index.load import Load
from router.index.moved import Move
from router.replicas import ReplicaId


class ReplicaReport(msgspec.Struct, frozen=True, array_like=True):
    """One router's own load on one replica; fields as in `Load`."""

    replica_id: str
    queued_tokens: int = 0
    wait_ms: float = 0.0
    running: int = 0
    waiting: int = 0
    recent_ms: float = 0.0
    mean_ms: float = 0.0
    resident_tokens: int = 0
    quiet_ms: float = 0.0
    queued_pairs: int = 0

    @property
    def load(self) -> Load:
        return Load(
            queued_tokens=self.queued_tokens,
            wait_ms=self.wait_ms,
            running=self.running,
            waiting=self.waiting,
            recent_ms=self.recent_ms,
            mean_ms=self.mean_ms,
            resident_tokens=self.resident_tokens,
            quiet_ms=self.quiet_ms,
            queued_pairs=self.queued_pairs,
        )


class Report(msgspec.Struct, frozen=True, array_like=True):
    """`number` counts up: an old report that is read again has the same one. `group`: of
    processes of one host, who know of each other's load without this. `pushes`: what changes until
    the next one is told as news.
    """

    number: int
    loads: tuple[ReplicaReport, ...] = ()
    group: str = ""
    pushes: bool = False

    @property
    def waits(self) -> bool:
        """Does a prompt of theirs wait for its first token anywhere?"""
        return any(row.waiting for row in self.loads)


class News(msgspec.Struct, frozen=True, array_like=True):
    """What has changed at some replicas, told at once; fields as in `Report`, whose numbers these
    continue. `is_last`: the router goes.
    """

    router_id: str
    number: int
    loads: tuple[ReplicaReport, ...] = ()
    group: str = ""
    is_last: bool = False


class Moves(msgspec.Struct, frozen=True, array_like=True):
    """Sessions that a router has moved: (key, new home) each."""

    router_id: str
    moves: tuple[Move, ...] = ()


_moves_decoder = msgspec.msgpack.Decoder(Moves)


def encode_moves(router_id: str, moves: Sequence[Move]) -> bytes:
    return msgspec.msgpack.encode(Moves(router_id, tuple(moves)))


def decode_moves(data: bytes) -> Moves | None:
    """None for what isn't it."""
    try:
        return _moves_decoder.decode(data)
    except msgspec.DecodeError:
        return None


_decoder = msgspec.msgpack.Decoder(Report)


_news_decoder = msgspec.msgpack.Decoder(News)


def encode_report(
    number: int, loads: Mapping[ReplicaId, Load], group: str = "", *, pushes: bool = False
) -> bytes:
    return msgspec.msgpack.encode(Report(number, _rows(loads), group, pushes))


def decode_report(data: bytes) -> Report | None:
    """None for what isn't one: another router's mistake must not be ours."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None


def encode_news(
    router_id: str,
    number: int,
    loads: Mapping[ReplicaId, Load],
    group: str = "",
    *,
    is_last: bool = False,
) -> bytes:
    news = News(router_id, number, _rows(loads), group, is_last)
    return msgspec.msgpack.encode(news)


def decode_news(data: bytes) -> News | None:
    """None for what isn't it."""
    try:
        return _news_decoder.decode(data)
    except msgspec.DecodeError:
        return None


def _rows(loads: Mapping[ReplicaId, Load]) -> tuple[ReplicaReport, ...]:
    rows = [
        ReplicaReport(
            replica_id,
            load.queued_tokens,
            round(load.wait_ms, 1),
            load.running,
            load.waiting,
            round(load.recent_ms, 1),
            round(load.mean_ms, 1),
            load.resident_tokens,
            round(load.quiet_ms, 1),
            load.queued_pairs,
        )
        for replica_id, load in loads.items()
    ]
    return tuple(rows)
