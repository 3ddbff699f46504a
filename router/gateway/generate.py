"""The life of a request, from top to bottom."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from router.errors import ReplicaUnreachable, RouterError
from router.gateway import replies
from router.openai.generation import parse_generation
from router.openai.usage import Usage
from router.planner import Plan
from router.proxy.reply import Reply
from router.record import Outcome, RequestRecord
from router.replicas import Replica
from router.runtime import RUNTIME, Runtime

LONGEST_REQUEST_ID = 128


async def generate(request: web.Request) -> web.StreamResponse:
    """Serve one generation. Whatever happens, one record leaves and the claim is let go."""
    runtime = request.app[RUNTIME]
    with runtime.accounts.open(request[replies.REQUEST_ID]) as record:
        record.path = request.path
        body = await request.read()
        generation = parse_generation(request.path, request.headers, body, runtime.session_headers)
        record.model, record.stream = generation.model, generation.stream
        with await runtime.planner.plan(generation) as plan:
            journey = Journey(runtime, record, plan)
            response, reply = await runtime.forwarder.forward(
                request, plan.body, plan.replicas, journey.headers, journey
            )
            journey.end(reply)
            return response


@dataclass(slots=True)
class Journey:
    """Follows one generation from replica to replica, and keeps its record and its claim true."""

    runtime: Runtime
    record: RequestRecord
    plan: Plan

    def __post_init__(self) -> None:
        record, plan = self.record, self.plan
        record.plan_ms = (self.runtime.clock() - record.started) * 1e3
        record.policy = self.runtime.policy_name
        record.reason = plan.decision.reason
        record.tokenize_failure = plan.tokenize_failure

    def trying(self, replica: Replica) -> None:
        """This replica gets the request now, and the load that goes with it."""
        self.plan.move(replica.id)
        record, candidate = self.record, self.plan.candidates[replica.id]
        prefix = self.plan.prefixes[replica.id]
        record.replica = replica.id
        record.tries += 1
        record.prompt_blocks = prefix.blocks
        record.matched_blocks = (
            candidate.matched_tokens // prefix.block_size if prefix.blocks else 0
        )
        record.predicted_hit_tokens = self.plan.predicted_hit_tokens(replica.id)
        record.predicted_ttft_ms = self.plan.decision.costs_ms.get(replica.id)

    def failed(self, replica: Replica, error: RouterError) -> None:
        """It did not answer. If it can't be reached, nobody else should have to find out."""
        if isinstance(error, ReplicaUnreachable):
            self.runtime.suspect(replica.id, error.message)

    def first_byte(self, replica: Replica, status: int) -> None:
        """Its first byte is on the way to the client."""
        if status < 400 and self.plan.first_token() is not None:
            self.record.ttft_ms = (self.runtime.clock() - self.record.started) * 1e3

    def headers(self, replica: Replica) -> Sequence[tuple[str, str]]:
        """What the reply's head says beside what the replica said."""
        record = self.record
        ours = [(replies.REQUEST_ID_HEADER, record.request_id)]
        if self.runtime.decision_headers:
            ours += [
                (replies.REPLICA_HEADER, replica.id),
                (replies.MATCHED_BLOCKS_HEADER, str(record.matched_blocks)),
                (replies.PROMPT_BLOCKS_HEADER, str(record.prompt_blocks)),
                (replies.REASON_HEADER, record.reason),
            ]
            if record.predicted_hit_tokens is not None:
                hit = str(record.predicted_hit_tokens)
                ours.append((replies.PREDICTED_HIT_HEADER, hit))
        return ours

    def end(self, reply: Reply) -> None:
        """The reply is over."""
        record = self.record
        record.status, record.outcome = reply.status, Outcome(reply.outcome)
        record.bytes_sent = reply.bytes_sent
        if (usage := reply.usage) is not None:
            record.prompt_tokens = usage.prompt_tokens
            record.completion_tokens = usage.completion_tokens
            self._learn_hit(reply.replica.id, usage)
            self.runtime.tokens.observe_count(
                self.plan.generation, self.plan.prompt_tokens, usage.prompt_tokens
            )

    def _learn_hit(self, replica_id: str, usage: Usage) -> None:
        predicted, hit = self.record.predicted_hit_tokens, usage.cached_tokens
        self.record.hit_tokens = hit
        if predicted is not None and hit is not None:
            self.runtime.observe_hit(replica_id, predicted, hit)


def request_id_of(request: web.Request) -> str:
    """The client's own id if it is a sane one, else a new one."""
    given = request.headers.get(replies.REQUEST_ID_HEADER, "")
    if 0 < len(given) <= LONGEST_REQUEST_ID and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex
