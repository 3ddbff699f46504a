"""One generation on its way: from replica to replica, and what each end says about them."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from router.errors import NoReplicaAvailable, ReplicaUnreachable, RouterError
from router.gateway import replies
from router.openai.responses import find_response_id
from router.openai.usage import Usage
from router.planner import Plan
from router.proxy.headers import Ours, check_values, ours_of
from router.proxy.reply import Reply
from router.record import Outcome, RequestRecord
from router.replicas import Member, Replica
from router.runtime import Runtime

_NAMES = frozenset((replies.REQUEST_ID_HEADER.encode(),))
_DECIDED = _NAMES.union(
    name.encode()
    for name in (
        replies.REPLICA_HEADER,
        replies.MATCHED_BLOCKS_HEADER,
        replies.PROMPT_BLOCKS_HEADER,
        replies.REASON_HEADER,
    )
)
_PREDICTED = _DECIDED | {replies.PREDICTED_HIT_HEADER.encode()}

FULL_FOR_S = 1.0
"""How long a replica that says "full" without saying until when comes after the others."""


class Journey:
    """Keeps a generation's record, its claim and its replicas' breakers true.

    A `with` block: however it ends, no breaker waits for it any more.
    """

    __slots__ = ("_extra", "_is_trial", "_member", "_ours", "_plan", "_record", "_runtime")

    def __init__(
        self, runtime: Runtime, record: RequestRecord, plan: Plan, extra: Mapping[str, str]
    ) -> None:
        self._runtime = runtime
        self._record = record
        self._plan = plan
        self._extra = extra
        self._member: Member | None = None
        self._ours: Ours | None = None
        self._is_trial = False
        record.queued_ms = plan.queued_ms
        record.plan_ms = (runtime.clock() - record.started) * 1e3 - plan.queued_ms
        record.policy = runtime.policy_name
        record.reason = plan.decision.reason
        record.tokenize_failure = plan.tokenize_failure
        record.index_failure = plan.index_failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._drop()

    def trying(self, replica: Replica) -> None:
        """This replica gets the request now, and the load that goes with it."""
        self._plan.move(replica.id)
        self._member = member = self._runtime.pool.get(replica.id)
        self._is_trial = member is not None and member.breaker.begin()
        self._ours = None
        self._record.replica = replica.id
        self._record.tries += 1

    def sent(self, replica: Replica) -> None:
        """The engine is at work: time for what the record and the reply's head will say."""
        self._record.sent_ms = (self._runtime.clock() - self._record.started) * 1e3
        if self._plan.generation.fields.reports_reused():
            self._runtime.index.expect_reused(replica.id)
        self._predict(replica)
        self._ours = self._head_of(replica)
        self._plan.sent()

    def _predict(self, replica: Replica) -> None:
        record, candidate = self._record, self._plan.candidates[replica.id]
        prefix = self._plan.prefix(replica.id)
        record.prompt_blocks = prefix.blocks
        record.matched_blocks = (
            candidate.matched_tokens // prefix.block_size if prefix.blocks else 0
        )
        record.predicted_hit_tokens = self._plan.predicted_hit_tokens(replica.id)
        record.reachable_hit_tokens = self._plan.reachable_hit_tokens
        predicted_ms = self._plan.decision.costs_ms.get(replica.id)
        record.predicted_ttft_ms = (
            predicted_ms + record.queued_ms if predicted_ms is not None else None
        )

    def failed(self, replica: Replica, error: RouterError) -> None:
        """It did not answer. If it can't be reached, nobody else should have to find out."""
        self._runtime.metrics.count_failure(replica.id, error.code)
        self._predict(replica)
        if isinstance(error, NoReplicaAvailable):
            self._runtime.pool.mark_full(replica.id, error.retry_after_s or FULL_FOR_S)
            self._drop()
            return
        self._fail()
        if isinstance(error, ReplicaUnreachable):
            self._runtime.suspect(replica.id, error.message)

    def first_byte(self, replica: Replica, status: int, start: bytes) -> None:
        """Its first byte is about to be sent to the client."""
        if status == 200 and self._plan.is_kept and (name := find_response_id(start)):
            # now: what the client has read it may go on from, by way of any router
            self._runtime.owners.note(name, replica.id)

    def first_byte_sent(self, replica: Replica, status: int) -> None:
        """The client has it."""
        if status < 400 and self._plan.first_token() is not None:
            self._record.ttft_ms = (self._runtime.clock() - self._record.started) * 1e3

    def headers(self, replica: Replica) -> Ours:
        """What the reply's head says beside what the replica said."""
        return self._ours or self._head_of(replica)

    def _head_of(self, replica: Replica) -> Ours:
        record = self._record
        names, lines = _NAMES, f"{replies.REQUEST_ID_HEADER}: {record.request_id}\r\n"
        if self._runtime.decision_headers:
            check_values(record.request_id, replica.id)
            names = _DECIDED
            lines = (
                f"{lines}{replies.REPLICA_HEADER}: {replica.id}\r\n"
                f"{replies.MATCHED_BLOCKS_HEADER}: {record.matched_blocks}\r\n"
                f"{replies.PROMPT_BLOCKS_HEADER}: {record.prompt_blocks}\r\n"
                f"{replies.REASON_HEADER}: {record.reason}\r\n"
            )
            if record.predicted_hit_tokens is not None:
                names = _PREDICTED
                lines += f"{replies.PREDICTED_HIT_HEADER}: {record.predicted_hit_tokens}\r\n"
        if self._extra:
            extra = ours_of(self._extra.items())
            return Ours(names | extra.names, lines.encode() + extra.lines)
        return Ours(names, lines.encode())

    def end(self, reply: Reply) -> None:
        """The reply is over."""
        record = self._record
        record.status, record.outcome = reply.status, Outcome(reply.outcome)
        record.bytes_sent = reply.bytes_sent
        if reply.first_byte_at is not None:
            record.first_byte_ms = (reply.first_byte_at - record.started) * 1e3
        if reply.status == 200:
            hit = reply.usage.cached_tokens if reply.usage is not None else None
            prefix = self._plan.prefix(reply.replica.id).hashes
            self._runtime.keeper.served(reply.replica.id, prefix, hit)
        self._judge(reply)
        if (usage := reply.usage) is not None:
            record.prompt_tokens = usage.prompt_tokens
            record.completion_tokens = self._plan.answer_tokens = usage.completion_tokens
            self._learn_hit(reply.replica.id, usage)
            self._runtime.tokens.observe_count(
                self._plan.generation, self._plan.prompt_tokens, usage.prompt_tokens
            )

    def _judge(self, reply: Reply) -> None:
        """What the end says of the replica. A refusal that was relayed has been judged already."""
        if reply.blames_replica:
            self._runtime.metrics.count_failure(reply.replica.id, reply.outcome)
            self._fail()
        elif self._record.outcome is not Outcome.CLIENT_GONE:
            if self._member is not None:
                self._member.breaker.passed(is_trial=self._is_trial)
            self._member = None
        else:
            self._drop()

    def _fail(self) -> None:
        if self._member is not None:
            self._member.breaker.failed(is_trial=self._is_trial)
        self._member = None

    def _drop(self) -> None:
        if self._member is not None:
            self._member.breaker.dropped(is_trial=self._is_trial)
        self._member = None

    def _learn_hit(self, replica_id: str, usage: Usage) -> None:
        predicted, hit = self._record.predicted_hit_tokens, usage.cached_tokens
        self._record.hit_tokens = hit
        if predicted is not None and hit is not None:
            age_s = self._runtime.clock() - self._record.started
            self._runtime.keeper.observe_hit(replica_id, predicted, hit, age_s)
