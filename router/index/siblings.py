"""Who else sends to the same replicas: other routers, other processes of this host."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeAlias

from router.blocks import BlockHash
from router.index.claims import Reservation
from router.index.load import Load
from router.replicas import ReplicaId

Noted: TypeAlias = tuple[ReplicaId, float]
"""Where something is, and until when that holds."""


class SiblingNotes(Protocol):
    """Where things are, as all processes of this host have noted it."""

    def put(self, key: str, replica_id: ReplicaId, until: float) -> None:
        """It is there until then."""

    def get(self, key: str) -> Noted | None:
        """What was noted last; that may be over."""


class NoNotes:
    """One process."""

    def put(self, key: str, replica_id: ReplicaId, until: float) -> None:
        """Nobody wants to know."""

    def get(self, key: str) -> Noted | None:
        return None


class OthersLoads(Protocol):
    """What other routers make replicas do. `unseen_s`: how long what they send stays unheard of."""

    unseen_s: float

    def get(self, replica_id: ReplicaId, /) -> Load | None:
        """All of them together, as of now. None: nothing."""

    def quiet(self, replica_id: ReplicaId, began: float, ended: float) -> bool | None:
        """Whether none of their prompts waited there in all that time. None: not known yet."""


class NoOthers:
    """One router."""

    unseen_s = 0.0

    def get(self, replica_id: ReplicaId, /) -> Load | None:
        return None

    def quiet(self, replica_id: ReplicaId, began: float, ended: float) -> bool | None:
        return True


class Siblings(Protocol):
    """Other processes of this host that send to the same replicas."""

    is_nobody: bool
    """There are none."""

    def get(self, replica_id: ReplicaId) -> Load | None:
        """What they make the replica do now."""

    def plus(self, replica_ids: Sequence[ReplicaId], ours: list[Load]) -> list[Load]:
        """Our own load of each, in their order, and theirs with it."""

    def seen(self, replica_id: ReplicaId) -> Load | None:
        """What they make it do, as `plus` found it, if that was just now."""

    def write(
        self, replica_id: ReplicaId, read: Callable[[ReplicaId], Load], *, at_once: bool = True
    ) -> None:
        """What we do has changed to what `read` gives. Unless they must know it `at_once`, they are
        told when what is being done now is done, of all changes together."""

    def begin(self, reservation: Reservation) -> None:
        """We sent it."""

    def end(self, reservation: Reservation) -> None:
        """It is over. Not more than once for each that began."""

    def expected(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """Leading blocks of `prefix` (not empty) that theirs in flight hold or compute."""

    @property
    def begun(self) -> int:
        """Counts up with each request that any of us, or they, begin."""

    def turn(self) -> AbstractContextManager[None] | None:
        """Until its end none of them has one. None: one of them has it now."""

    def tell(self, word: bytes) -> None:
        """All of them should know this."""

    def hear(self) -> Sequence[bytes]:
        """What they have told since this was last called, those that ended included."""

    def forget(self, replica_id: ReplicaId) -> None:
        """It left, and nothing of ours is in flight there."""

    @property
    def untold(self) -> int:
        """Replicas whose load could not be shared."""


class NoSiblings:
    """One process."""

    untold = 0
    begun = 0

    is_nobody = True

    def turn(self) -> AbstractContextManager[None] | None:
        return nullcontext()

    def tell(self, word: bytes) -> None:
        """Nobody wants to know."""

    def hear(self) -> Sequence[bytes]:
        return ()

    def get(self, replica_id: ReplicaId) -> Load | None:
        return None

    def plus(self, replica_ids: Sequence[ReplicaId], ours: list[Load]) -> list[Load]:
        return ours

    def seen(self, replica_id: ReplicaId) -> Load | None:
        return None

    def write(
        self, replica_id: ReplicaId, read: Callable[[ReplicaId], Load], *, at_once: bool = True
    ) -> None:
        """Nobody wants to know."""

    def begin(self, reservation: Reservation) -> None:
        """Nobody wants to know."""

    def end(self, reservation: Reservation) -> None:
        """Nobody wants to know."""

    def expected(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        return {}

    def forget(self, replica_id: ReplicaId) -> None:
        """There is nothing to forget."""
