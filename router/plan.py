"""What was planned for one generation, and its claim on the replica that serves it."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from msgspec import Struct

from router.openai.generation import Generation
from router.openai.responses import is_response
from router.queueing import NoQueue, Queue
from router.replicas import Replica, ReplicaId
from router.routing import Candidate, Decision
from router.routing.choosing import Choice, Chooser, Claim, Prefix


class Plan(Struct):
    """Where one generation goes, and its claim on the replica that serves it.

    A `with` block: the claim starts with the plan and ends with the block. `move` takes it along
    when another replica is tried.
    """

    choice: Choice
    replicas: tuple[Replica, ...]
    tokenize_failure: str
    stream: bool
    generation: Generation
    body: bytes
    """What the replica is sent: the client's own bytes, unless ids go in the text's place."""
    _chooser: Chooser
    _queue: Queue | NoQueue
    index_failure: str = ""
    """Why the central index had no say."""
    queued_ms: float = 0.0
    """How long it waited in the router for a replica that could start it."""
    answer_tokens: int | None = None
    """How long the answer was, once usage has told."""
    _claim: Claim | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()

    @property
    def is_kept(self) -> bool:
        """Whether the replica may keep its answer, for asks that go on from it."""
        return is_response(self.generation)

    @property
    def decision(self) -> Decision:
        return self.choice.decision

    @property
    def candidates(self) -> Mapping[ReplicaId, Candidate]:
        return self.choice.candidates

    @property
    def prompt_tokens(self) -> int:
        return self.choice.query.prompt_tokens

    def prefix(self, replica_id: ReplicaId) -> Prefix:
        """The prompt in that replica's blocks."""
        return self.choice.contenders[replica_id].prefix

    def move(self, replica_id: ReplicaId) -> None:
        """The request goes to this replica now. Moving to where it is changes nothing."""
        if self._claim is not None and self._claim.replica_id == replica_id:
            return
        self._release()
        self._claim = self._chooser.claim(self.choice, replica_id, silent=not self.stream)

    def sent(self) -> None:
        """It is on its way to the replica that it was moved to."""
        if self._claim is not None:
            self._claim.sent()

    def first_token(self) -> float | None:
        """Its first token came: the prompt is computed. Returns the TTFT in ms, if it is one.

        A reply that isn't streamed has no first token.
        """
        if self._claim is None or not self.stream:
            return None
        ttft_ms = self._claim.first_token()
        self._queue.changed()
        return ttft_ms

    def predicted_hit_tokens(self, replica_id: ReplicaId) -> int | None:
        """Prompt tokens that the replica should reuse; None if the prompt isn't known."""
        return self.candidates[replica_id].hit_tokens if self.prompt_tokens else None

    @property
    def reachable_hit_tokens(self) -> int | None:
        """The same of the replica that holds most, wherever the request goes."""
        if not self.prompt_tokens:
            return None
        return max([candidate.hit_tokens for candidate in self.candidates.values()])

    def _release(self) -> None:
        if self._claim is not None:
            self._claim.release(self.answer_tokens)
            self._claim = None
            self._queue.changed()
