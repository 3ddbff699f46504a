"""Replies that ask for another replica: 429, 502, 503, 504; for a stored response 404 too."""

from typing import Final

from router.errors import NoReplicaAvailable, ReplicaFailed, ResponseNotFound, RouterError
from router.openai.usage import Usage
from router.proxy.body import Body
from router.proxy.head import BadReply, Head
from router.proxy.splice import Splice
from router.replicas.replica import ReplicaId

_MAX_RETRY_AFTER_DIGITS = 5
NOT_FOUND: Final = 404
REFUSALS: Final = frozenset((429, 502, 503, 504))
"""Statuses with which a replica sends a generation away."""


class RefusalSplice:
    """A reply that asks for another replica. Kept whole, in case there is none."""

    def __init__(self, body: Body, held_bytes: int) -> None:
        self.is_whole = False
        self.held = bytearray()
        self._body = body
        self._held_bytes = held_bytes

    @property
    def has_begun(self) -> bool:
        return bool(self.held)

    def feed(self, data: bytes) -> None:
        self.held += self._body.decode(data)
        if len(self.held) > self._held_bytes:
            raise BadReply("sent an error that is too long")
        self.is_whole = self._body.is_whole

    def close(self) -> bool:
        self.is_whole = self._body.ends_with_connection()
        return self.is_whole

    def cut(self, path: str, error: RouterError) -> None:
        """Nothing of it was sent."""

    def usage(self) -> Usage | None:
        return None

    def holds_error(self) -> bool:
        return True

    def blames_client(self) -> bool:
        return False


def refusal_of(
    replica_id: ReplicaId, head: Head | None, splice: Splice | None
) -> RouterError | None:
    """The error that a whole reply of such a status stands for; None for other replies.

    `NoReplicaAvailable`: the replica is full (429, or 503 with Retry-After or from a full queue).
    """
    if head is None or not isinstance(splice, RefusalSplice):
        return None
    name = f"replica {replica_id}"
    if head.status == NOT_FOUND:
        return ResponseNotFound(f"{name} does not keep it")
    if head.status == 429 or (head.status == 503 and _says_full(head, bytes(splice.held))):
        return NoReplicaAvailable(f"{name} is full", retry_after_s=_retry_after_s(head))
    return ReplicaFailed(f"{name} answered {head.status}")


def _retry_after_s(head: Head) -> float | None:
    """Seconds that the engine asked for; None for a date, for nonsense, and for nothing."""
    text = head.value(b"retry-after")
    return float(text) if text.isdigit() and len(text) < _MAX_RETRY_AFTER_DIGITS else None


def _says_full(head: Head, body: bytes) -> bool:
    words = body.lower()
    is_queue = any(word in words for word in (b"busy", b"queue", b"overload", b"capacity"))
    return is_queue or head.has(b"retry-after")
