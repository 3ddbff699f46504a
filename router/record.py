"""One typed record per request: the access-log line, the request metrics, later the ledger."""

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType

from msgspec import Struct

from router.errors import RouterError


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    CLIENT_GONE = "client_gone"
    REJECTED = "rejected"
    REPLICA_ERROR = "replica_error"
    REPLICA_FAILED = "replica_failed"
    CUT_SHORT = "cut_short"
    INTERNAL_ERROR = "internal_error"


class RequestRecord(Struct):
    """What happened to one request. Never prompt text, never keys. Times in ms, sizes in tokens.

    `predicted_hit_tokens` is what the index promised for the replica that answered,
    `reachable_hit_tokens` for the one that held most; `hit_tokens` what the engine says it reused
    (None: it doesn't say). `sent_ms`, `first_byte_ms`: since the request came, of the replica that
    was tried last. `queued_ms`: how long it waited in the router; not in `plan_ms`, but in
    `predicted_ttft_ms`.
    """

    request_id: str
    started: float
    path: str = ""
    tenant: str = ""
    model: str = ""
    replica: str = ""
    policy: str = ""
    reason: str = ""
    tries: int = 0
    status: int = 0
    outcome: Outcome = Outcome.INTERNAL_ERROR
    error: str = ""
    stream: bool = False
    prompt_tokens: int | None = None
    prompt_blocks: int = 0
    matched_blocks: int = 0
    predicted_hit_tokens: int | None = None
    reachable_hit_tokens: int | None = None
    hit_tokens: int | None = None
    completion_tokens: int | None = None
    tokenize_failure: str = ""
    index_failure: str = ""
    plan_ms: float = 0.0
    queued_ms: float = 0.0
    predicted_ttft_ms: float | None = None
    sent_ms: float = 0.0
    first_byte_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float = 0.0
    bytes_sent: int = 0
    trace_id: str = ""


Sink = Callable[[RequestRecord], None]


@dataclass(slots=True)
class Accounts:
    """Opens a record per request and hands each to every sink, however the request ends."""

    clock: Callable[[], float]
    sinks: Sequence[Sink] = field(default_factory=tuple)

    def open(self, request_id: str) -> "Account":
        """`with accounts.open(id) as record:`"""
        return Account(self, RequestRecord(request_id, self.clock()))


class Account(Struct):
    """The `with` block of one request."""

    accounts: Accounts
    record: RequestRecord

    def __enter__(self) -> RequestRecord:
        return self.record

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        record = self.record
        if isinstance(exc, CancelledError | ConnectionError):
            record.outcome = Outcome.CLIENT_GONE
        elif isinstance(exc, RouterError):
            record.outcome = Outcome.REPLICA_FAILED if exc.is_replicas else Outcome.REJECTED
            record.status, record.error = exc.status, exc.code
        record.total_ms = (self.accounts.clock() - record.started) * 1e3
        for sink in self.accounts.sinks:
            sink(record)
