"""`POST /debug/explain`: where would this request go now, and why? Nothing is booked or sent."""

import asyncio
from typing import Any

from aiohttp import web

from router.gateway.replies import json_response
from router.gateway.server import EdgeLimits, read_body
from router.openai.generation import parse_generation
from router.routing import Candidate, Choice
from router.routing.cost import Surroundings, computing_ms, predicted_ttft_ms, social_cost_ms
from router.runtime import Runtime


class Explain:
    """The body is a generation's; `?path=` says which kind (default: a chat's)."""

    def __init__(self, runtime: Runtime, limits: EdgeLimits) -> None:
        self._runtime, self._limits = runtime, limits

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        runtime = self._runtime
        path = request.query.get("path", "/v1/chat/completions")
        body = await read_body(request, self._limits)
        generation = parse_generation(path, request.headers, body, runtime.session_headers)
        # The admin port has a thread of its own; what the answer is made from belongs to the other.
        answer = asyncio.run_coroutine_threadsafe(
            runtime.planner.explain(generation), runtime.crashed.get_loop()
        )
        choice, failure = await asyncio.wrap_future(answer)
        return json_response(explained(runtime, choice, failure))


def explained(runtime: Runtime, choice: Choice, failure: str) -> dict[str, Any]:
    """Replicas in order of preference; times in ms, lengths in tokens."""
    around = Surroundings.of(list(choice.candidates.values()))
    return {
        "policy": runtime.policy_name,
        "reason": choice.decision.reason,
        "prompt_tokens": choice.query.prompt_tokens,
        "tokenize_failure": failure,
        "ring_key": choice.query.ring_key,
        "fleet_busy": around.busy,
        "fleet_queueing": around.queueing,
        "replicas": [
            {
                "id": replica_id,
                "trust": runtime.keeper.of(replica_id).trust.trust,
                **_candidate(choice, choice.candidates[replica_id], around),
            }
            for replica_id in choice.decision.replicas
        ],
    }


def _candidate(choice: Choice, candidate: Candidate, around: Surroundings) -> dict[str, Any]:
    query, prefix = choice.query, choice.contenders[candidate.replica_id].prefix
    size = prefix.block_size
    return {
        "prompt_blocks": prefix.blocks,
        "matched_blocks": candidate.matched_tokens // size if size else 0,
        "matched_tokens": candidate.matched_tokens,
        "expected_tokens": candidate.hit_tokens - candidate.matched_tokens,
        "distance_ms": candidate.distance_ms,
        "loaded_tokens": candidate.loaded_tokens,
        "load_ms": candidate.load_ms,
        "wait_ms": candidate.wait_ms,
        "memory_wait_ms": candidate.memory_wait_ms,
        "prefill_ms": computing_ms(query, candidate),
        "ttft_ms": predicted_ttft_ms(query, candidate),
        "cost_ms": social_cost_ms(query, candidate, around),
        "queued_tokens": candidate.queued_tokens,
        "running": candidate.running,
        "busy": candidate.busy,
        "full": candidate.full,
    }
