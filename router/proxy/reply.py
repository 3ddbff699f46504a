"""What a forwarded request is held to, and what is known about it afterwards."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from router.errors import RouterError
from router.openai.usage import Usage
from router.proxy.headers import Ours
from router.replicas.replica import Replica


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds in time (seconds) and in bytes. There is no limit on a reply's total time or length.

    `first_byte_timeout_s`: from the request's sending to the first token of a stream, or the
    first byte of another body; then `idle_timeout_s` between bytes. `client_stall_timeout_s`: how
    long a client may leave a full buffer unread. `high_water_bytes`: unsent bytes above which the
    engine is not read. `held_bytes`: most that is kept back of one reply. `tail_bytes`: end of a
    reply that is kept to look for its usage.
    """

    connect_timeout_s: float = 2.0
    first_byte_timeout_s: float = 600.0
    idle_timeout_s: float = 60.0
    client_stall_timeout_s: float = 120.0
    high_water_bytes: int = 64 * 1024
    held_bytes: int = 64 * 1024
    tail_bytes: int = 8 * 1024
    max_head_bytes: int = 64 * 1024
    max_idle_connections: int = 256
    max_idle_s: float = 30.0
    max_tries: int = 3


class Outcome(StrEnum):
    """How a forwarded request ended.

    REPLICA_ERROR: the replica's own error was relayed, as a status or as an event. CUT_SHORT: the
    engine died after the first byte; the client got an error event or a broken connection.
    """

    OK = "ok"
    CLIENT_GONE = "client_gone"
    CUT_SHORT = "cut_short"
    REPLICA_ERROR = "replica_error"


class Reply(Struct):
    """The report on one request. Times are of the forwarder's clock.

    `blames_replica`: it died after the first byte or answered with an error that is no client's
    fault. (What was told by `failed` already is not told again.)
    `tries` counts replicas, not connections. `bytes_sent` includes the head. `keeps_alive`: the
    client's connection may carry another request.
    """

    replica: Replica
    status: int
    outcome: Outcome
    tries: int
    bytes_sent: int
    first_byte_at: float | None
    ended_at: float
    usage: Usage | None
    keeps_alive: bool
    blames_replica: bool = False


class Listener(Protocol):
    """Told as it happens, inside the data path: must be quick and must not raise.

    Every `trying` is followed by `failed`, or by the end of `forward()`. A refusal (429, 502, 503,
    504) counts as failed even if it is what the client gets in the end. After `first_byte` comes
    no `failed`: an engine that dies later is in the report, as CUT_SHORT.
    """

    def trying(self, replica: Replica) -> None:
        """Before each attempt."""

    def sent(self, replica: Replica) -> None:
        """The request is on its way there. What is done here takes none of the client's time: the
        engine is at work meanwhile. Not called if there is no connection; twice if the first had
        been closed from the other end."""

    def failed(self, replica: Replica, error: RouterError) -> None:
        """The attempt is over. `NoReplicaAvailable` means that the replica is full, not broken."""

    def headers(self, replica: Replica) -> Ours:
        """What the client is told about the replica that answers."""

    def first_byte(self, replica: Replica, status: int, start: bytes) -> None:
        """The first byte of the body (of a stream: the first token) is about to be sent: time for
        what must be known before the client can act on it, and for nothing else.

        `start`: as much of the body as has come.
        """

    def first_byte_sent(self, replica: Replica, status: int) -> None:
        """The client's socket has it."""
