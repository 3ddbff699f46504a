"""The life of a request, from top to bottom."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping

from aiohttp import web

from router.gateway import replies
from router.gateway.journey import Journey
from router.gateway.limits import EdgeLimits
from router.gateway.quick import QuickRequest
from router.gateway.server import read_body
from router.openai.generation import parse_generation
from router.proxy.client import SentResponse
from router.proxy.headers import SentHeads
from router.proxy.reply import Reply
from router.runtime import Runtime


class Generate:
    """Serves generations. Whatever happens to one, its record leaves and its claim is let go."""

    def __init__(self, runtime: Runtime, limits: EdgeLimits) -> None:
        self._runtime = runtime
        self._limits = limits

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """As a handler of aiohttp's."""
        reply = await self.serve(
            request,
            request[replies.REQUEST_ID],
            request[replies.EXTRA_HEADERS],
            lambda: read_body(request, self._limits),
        )
        return SentResponse(
            reply.status, keeps_alive=reply.keeps_alive, bytes_sent=reply.bytes_sent
        )

    def quick(
        self, request: QuickRequest, request_id: str, extra: Mapping[str, str]
    ) -> Coroutine[None, None, Reply]:
        """`serve` of a quick request."""
        timeout_s = self._limits.body_timeout_s
        return self.serve(
            request, request_id, extra, lambda: request.body(timeout_s), request.head.sent
        )

    async def serve(
        self,
        request: web.BaseRequest | QuickRequest,
        request_id: str,
        extra: Mapping[str, str],
        read: Callable[[], Awaitable[bytes]],
        sent_heads: SentHeads | None = None,
    ) -> Reply:
        """The client has got its reply. RouterError: it has got nothing.

        `extra`: further headers of the reply; `read`: gets the body; `sent_heads`: see `forward`.
        """
        runtime = self._runtime
        with (
            runtime.tracer.open(request.headers) as trace,
            runtime.accounts.open(request_id) as record,
        ):
            trace.tell(record)
            record.path = request.path
            tenant = runtime.gate.authenticate(request.headers)
            record.tenant = tenant.id
            body = await read()
            generation = parse_generation(
                request.path, request.headers, body, runtime.session_headers
            )
            record.model, record.stream = generation.model, generation.stream
            with (
                await runtime.gate.admit(tenant, generation) as visit,
                await runtime.planner.plan(generation, tenant.id) as plan,
                Journey(runtime, record, plan, visit.on(extra)) as journey,
            ):
                reply = await runtime.forwarder.forward(
                    request,
                    plan.body,
                    plan.replicas,
                    journey,
                    trace.headers,
                    sent_heads,
                )
                journey.end(reply)
                if (usage := reply.usage) is not None:
                    visit.spent(usage.prompt_tokens + usage.completion_tokens)
                return reply
