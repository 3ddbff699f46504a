"""Every error that a client can be told: its status, its code, and words that say what to do.

Parts raise these as facts; the gateway's one middleware turns them into OpenAI-shaped bodies.
"""

import errno
from collections.abc import Mapping
from typing import ClassVar, Final


class RouterError(Exception):
    """Something a client is told. Leaves fix the status and the code."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"
    headers: Mapping[str, str] = {}
    """What the reply's head says besides."""
    is_replicas: ClassVar[bool] = False
    """Whether a replica is to blame, not the client and not us."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class InvalidRequest(RouterError):
    """The client must change the request: bad JSON, a missing field, a wrong type."""

    status = 400
    code = "invalid_request"
    type = "invalid_request_error"


class Unauthenticated(RouterError):
    """No key, or a key that we don't know."""

    status = 401
    code = "invalid_api_key"
    type = "invalid_request_error"


class Forbidden(RouterError):
    """A key that we know, but it may not do this."""

    status = 403
    code = "permission_denied"
    type = "invalid_request_error"


class RateLimited(RouterError):
    """The tenant's requests or tokens of this minute, or its requests at once, are used up."""

    status = 429
    code = "rate_limit_exceeded"
    type = "rate_limit_error"

    def __init__(
        self, message: str, *, retry_after_s: float, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.headers = headers or {}


class RouteNotFound(RouterError):
    """No such path here."""

    status = 404
    code = "not_found"
    type = "invalid_request_error"


class MethodNotAllowed(RouterError):
    """The path exists, but not with this method."""

    status = 405
    code = "method_not_allowed"
    type = "invalid_request_error"


class ModelNotFound(RouterError):
    """No replica serves the model that was asked for."""

    status = 404
    code = "model_not_found"
    type = "invalid_request_error"


class ResponseNotFound(RouterError):
    """No replica is known to keep the stored response."""

    status = 404
    code = "response_not_found"
    type = "invalid_request_error"


class RequestTimeout(RouterError):
    """The client took too long to send its body."""

    status = 408
    code = "request_timeout"
    type = "invalid_request_error"


class PayloadTooLarge(RouterError):
    """The body is longer than `listen.max_body_bytes`."""

    status = 413
    code = "payload_too_large"
    type = "invalid_request_error"


class NoReplicaAvailable(RouterError):
    """Replicas that could serve the model are known, but none can take a request now."""

    status = 503
    code = "no_replica_available"


class QueueFull(RouterError):
    """So many requests wait in the router for a replica that no more are let in."""

    status = 503
    code = "queue_full"


class QueueTimeout(RouterError):
    """No replica could start the request while it waited in the router."""

    status = 503
    code = "queue_timeout"


class RouterOverloaded(RouterError):
    """The router itself has run out of file descriptors or ports. No replica is to blame."""

    status = 503
    code = "router_overloaded"


OWN_SHORTAGES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL))
"""A connection that fails with one of these says nothing about the other end."""


class ReplicaUnreachable(RouterError):
    """The connection to a replica failed, or ended before it answered."""

    status = 502
    code = "replica_unreachable"
    is_replicas = True


class ReplicaFailed(RouterError):
    """A replica answered with something that is no answer, or broke off in it."""

    status = 502
    code = "replica_failed"
    is_replicas = True


class ReplicaTimeout(RouterError):
    """A replica sent no byte within the limit."""

    status = 504
    code = "replica_timeout"
    is_replicas = True
