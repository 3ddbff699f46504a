"""Traces of requests, as the gateway sees them: something opens one, and its headers go along."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from router.record import RequestRecord


class Trace:
    """A `with` block around one request. This one is of a router that traces nothing."""

    headers: Sequence[tuple[bytes, bytes]] = ()
    """What the replica gets in place of the client's headers of these names."""

    def tell(self, record: RequestRecord) -> None:
        """Where the request's times and outcome will be when the block ends."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The request is over."""


class Tracer(Protocol):
    """Chosen once: to a collector, or nowhere."""

    def open(self, headers: Mapping[str, str]) -> Trace:
        """A request with these headers begins."""
        ...


class NoTracer:
    """Costs a call per request."""

    _trace = Trace()

    def open(self, headers: Mapping[str, str]) -> Trace:
        return self._trace
