"""`POST /debug/explain`: where would this request go now, and why? Nothing is booked or sent."""

import asyncio
from typing import Any, Final

from aiohttp import web

from router.gateway.limits import EdgeLimits
from router.gateway.replies import json_response
from router.gateway.server import read_body
from router.openai.generation import parse_generation
from router.routing import Candidate, Choice
from router.routing.cost import (
    Surroundings,
    computing_ms,
    others_ms,
    predicted_ttft_ms,
    social_cost_ms,
)
from router.routing.policies.cache_aware import EQUAL_WITHIN
from router.runtime import Runtime

OWN_MEMORY: Final = "gpu"
"""What engines call their own memory in events."""


class Explain:
    """The body is a generation's; `?path=` says which kind (default: a chat's)."""

    def __init__(self, runtime: Runtime, limits: EdgeLimits) -> None:
        self._runtime, self._limits = runtime, limits

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        runtime = self._runtime
        path = request.query.get("path", "/v1/chat/completions")
        body = await read_body(request, self._limits)
        generation = parse_generation(path, request.headers, body, runtime.session_headers)

        async def explain() -> Any:
            choice, failure, silence = await runtime.planner.explain(generation)
            return explained(runtime, generation.model, choice, (failure, silence))

        # The admin port has a thread of its own; what the answer is made from belongs to the other.
        answer = asyncio.run_coroutine_threadsafe(explain(), runtime.crashed.get_loop())
        return json_response(await asyncio.wrap_future(answer))


def explained(
    runtime: Runtime, model: str, choice: Choice, failures: tuple[str, str]
) -> dict[str, Any]:
    """Replicas in order of preference; times in ms, lengths in tokens.

    `failures`: why tokenizing and asking the central index failed, if they did.
    """
    failure, index_failure = failures
    around = Surroundings.of(list(choice.candidates.values()))
    queue = runtime.planner.queue
    return {
        "policy": runtime.policy_name,
        "reason": choice.decision.reason,
        "prompt_tokens": choice.query.prompt_tokens,
        "tokenize_failure": failure,
        "index_failure": index_failure,
        "ring_key": choice.query.ring_key,
        "fleet_busy": around.busy,
        "fleet_queueing": around.queueing,
        "queue": {
            "slo_ttft_ms": queue.slo_ms,
            "requests": queue.length,
            "would_wait": queue.holds(model, choice),
        },
        "replicas": [
            {
                "id": replica_id,
                "trust": runtime.keeper.of(replica_id).trust.trust,
                "trust_reason": runtime.keeper.of(replica_id).trust.reason,
                "share": runtime.planner.chooser.ramp.share(replica_id, runtime.clock()),
                **candidate_row(choice, choice.candidates[replica_id], around),
            }
            for replica_id in choice.decision.replicas
        ],
    }


def candidate_row(choice: Choice, candidate: Candidate, around: Surroundings) -> dict[str, Any]:
    """What is known of one replica. Its cost is the sum of what `because` is the largest of."""
    query, prefix = choice.query, choice.contenders[candidate.replica_id].prefix
    size = prefix.block_size
    return {
        "prompt_blocks": prefix.blocks,
        "matched_blocks": candidate.matched_tokens // size if size else 0,
        "matched_tokens": candidate.matched_tokens,
        "tiers": _tiers(candidate, size),
        "because": _because(choice, candidate, around),
        "expected_tokens": candidate.expected_tokens,
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


def _tiers(candidate: Candidate, block_size: int) -> dict[str, int]:
    """Blocks of the prompt that each tier holds: the engine's own memory, then slower ones."""
    own = candidate.matched_tokens // block_size if block_size else 0
    slower: dict[str, int] = {}
    for load in candidate.tiers:
        slower[load.medium] = slower.get(load.medium, 0) + load.blocks
    return {OWN_MEMORY: own, **slower}


def _because(choice: Choice, candidate: Candidate, around: Surroundings) -> str:
    """Why it is where it is in the order: what of its cost is most above the first choice's."""
    order = choice.decision.replicas
    if candidate.replica_id == order[0]:
        return str(choice.decision.reason)
    first, own = (_parts_ms(choice, c, around) for c in (choice.candidates[order[0]], candidate))
    name, over_ms = max(((name, own[name] - first[name]) for name in own), key=lambda p: p[1])
    if sum(own.values()) <= EQUAL_WITHIN * sum(first.values()):
        return "equal, or not ordered by cost"
    return f"{name} +{over_ms:,.1f} ms"


def _parts_ms(choice: Choice, candidate: Candidate, around: Surroundings) -> dict[str, float]:
    """What `cost_ms` is the sum of."""
    ttft = candidate.ttft
    return {
        "prefill": computing_ms(choice.query, candidate),
        "speed": ttft.base_ms,
        "wait": candidate.wait_ms,
        "memory wait": candidate.memory_wait_ms,
        "loading": candidate.load_ms,
        "distance": candidate.distance_ms,
        "decoding": candidate.running * ttft.ms_per_running,
        "others' time": others_ms(choice.query, candidate, around),
    }
