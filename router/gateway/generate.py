"""The life of a request, from top to bottom."""

from aiohttp import web

from router.gateway import replies
from router.gateway.journey import Journey
from router.gateway.server import EdgeLimits, read_body
from router.openai.generation import parse_generation
from router.runtime import Runtime


class Generate:
    """Serves generations. Whatever happens to one, its record leaves and its claim is let go."""

    def __init__(self, runtime: Runtime, limits: EdgeLimits) -> None:
        self._runtime = runtime
        self._limits = limits

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        runtime = self._runtime
        with (
            runtime.tracer.open(request.headers) as trace,
            runtime.accounts.open(request[replies.REQUEST_ID]) as record,
        ):
            trace.tell(record)
            record.path = request.path
            tenant = runtime.gate.authenticate(request.headers)
            record.tenant = tenant.id
            body = await read_body(request, self._limits)
            generation = parse_generation(
                request.path, request.headers, body, runtime.session_headers
            )
            record.model, record.stream = generation.model, generation.stream
            with (
                await runtime.gate.admit(tenant, generation) as visit,
                await runtime.planner.plan(generation, tenant.id) as plan,
                Journey(runtime, record, plan, visit.on(request[replies.EXTRA_HEADERS])) as journey,
            ):
                response, reply = await runtime.forwarder.forward(
                    request, plan.body, plan.replicas, journey.headers, journey, trace.headers
                )
                journey.end(reply)
                if (usage := reply.usage) is not None:
                    visit.spent(usage.prompt_tokens + usage.completion_tokens)
                return response
