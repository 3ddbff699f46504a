"""What clients do with a response that an engine keeps: read it, cancel it, delete it."""

import re
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from router.errors import NoReplicaAvailable, ReplicaUnreachable, ResponseNotFound, RouterError
from router.gateway import replies
from router.gateway.limits import EdgeLimits
from router.gateway.server import read_body
from router.proxy.client import SentResponse
from router.proxy.headers import Ours, ours_of
from router.record import Outcome, RequestRecord
from router.replicas import Replica
from router.runtime import Runtime

_PATH: Final = re.compile(r"/v1/responses/([!#-.0-\[\]-~]{1,256})(/cancel|/input_items)?")
_METHODS: Final = {None: ("GET", "DELETE"), "/cancel": ("POST",), "/input_items": ("GET",)}
KEPT: Final = "kept"
"""A reason: it goes to the replica that is known to keep the response."""
ASKED_AROUND: Final = "asked_around"
"""Nobody knows of it: one replica after another is asked."""


def methods_of(path: str) -> Sequence[str]:
    """What can be done there; nothing, if it is not the path of a stored response."""
    match = _PATH.fullmatch(path)
    return () if match is None else _METHODS[match[2]]


class StoredResponses:
    """Sends it to the replica that keeps the response, and only there.

    Where no router has seen the response, replicas are asked in turn, `forward.max_tries` of them
    at most, until one does not answer 404.
    """

    def __init__(self, runtime: Runtime, limits: EdgeLimits) -> None:
        self._runtime, self._limits = runtime, limits

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        runtime = self._runtime
        match = _PATH.fullmatch(request.path)
        assert match is not None
        with (
            runtime.tracer.open(request.headers) as trace,
            runtime.accounts.open(request[replies.REQUEST_ID]) as record,
        ):
            trace.tell(record)
            record.path = request.path
            record.tenant = runtime.gate.authenticate(request.headers).id
            body = await read_body(request, self._limits)
            owner = await runtime.owners.find(match[1])
            record.reason = KEPT if owner is not None else ASKED_AROUND
            errand = _Errand(runtime, record, match[1], replies.extra_of(request))
            if owner is None:
                reply = await runtime.forwarder.ask_around(
                    request, body, self._all(), errand, trace.headers
                )
            else:
                reply = await runtime.forwarder.forward(
                    request, body, self._keeper(match[1], owner), errand, trace.headers
                )
            record.status, record.outcome = reply.status, Outcome(reply.outcome)
            record.bytes_sent = reply.bytes_sent
            return SentResponse(
                reply.status, keeps_alive=reply.keeps_alive, bytes_sent=reply.bytes_sent
            )

    def _keeper(self, response_id: str, owner: str) -> Sequence[Replica]:
        member = self._runtime.pool.get(owner)
        if member is None:
            raise ResponseNotFound(
                f"The replica that kept the response {response_id} is not there any more."
            )
        if not member.is_healthy:
            raise NoReplicaAvailable(
                f"The replica that keeps the response {response_id} can't be reached now. "
                "Try again shortly.",
                retry_after_s=1.0,
            )
        return (member.replica,)

    def _all(self) -> Sequence[Replica]:
        up = [m.replica for m in self._runtime.pool if m.is_healthy and m.replica.answers]
        if not up:
            raise NoReplicaAvailable("No replica is up now.", retry_after_s=1.0)
        return up


class _Errand:
    """Keeps the record true; a replica that keeps what nobody knew of is remembered."""

    def __init__(
        self, runtime: Runtime, record: RequestRecord, response_id: str, extra: Ours
    ) -> None:
        self._runtime, self._record = runtime, record
        self._response_id, self._extra = response_id, extra

    def trying(self, replica: Replica) -> None:
        record = self._record
        record.replica, record.tries = replica.id, record.tries + 1

    def sent(self, replica: Replica) -> None:
        record = self._record
        record.sent_ms = (self._runtime.clock() - record.started) * 1e3

    def failed(self, replica: Replica, error: RouterError) -> None:
        if isinstance(error, ResponseNotFound):
            return
        self._runtime.metrics.count_failure(replica.id, error.code)
        if isinstance(error, ReplicaUnreachable):
            self._runtime.suspect(replica.id, error.message)

    def headers(self, replica: Replica) -> Ours:
        record = self._record
        ours = [(replies.REQUEST_ID_HEADER, record.request_id)]
        if self._runtime.decision_headers:
            ours += [(replies.REPLICA_HEADER, replica.id), (replies.REASON_HEADER, record.reason)]
        named = ours_of(ours)
        return Ours(named.names | self._extra.names, named.lines + self._extra.lines)

    def first_byte(self, replica: Replica, status: int, start: bytes) -> None:
        if status == 200 and self._record.reason == ASKED_AROUND:
            self._runtime.owners.note(self._response_id, replica.id)

    def first_byte_sent(self, replica: Replica, status: int) -> None:
        """It has been noted already."""
