"""`GET /debug/shadow`: what other policies would have done with this router's traffic."""

from typing import Any

from aiohttp import web

from router.gateway.admin import read
from router.gateway.replies import json_response
from router.routing.shadow import Tally
from router.runtime import Runtime


class DebugShadow:
    """The policy that acts first. Nothing but predictions: see `routing.shadow`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        return json_response(read(self._look))

    def _look(self) -> dict[str, Any]:
        tallies = self._runtime.planner.shadows.tallies
        policies = [_described(tally) for tally in tallies]
        return {"policy": self._runtime.policy_name, "policies": policies}


def _described(tally: Tally) -> dict[str, Any]:
    """Shares are 0 to 1; percentiles are of the last 1,000 requests. None: of no request."""
    recent = sorted(tally.recent_ms)
    count = tally.requests
    return {
        "policy": tally.policy,
        "requests": count,
        "same_choice": tally.same / count if count else None,
        "predicted_hit_rate": (
            tally.hit_tokens / tally.prompt_tokens if tally.prompt_tokens else None
        ),
        "predicted_ttft_mean_ms": tally.ttft_sum_ms / count if count else None,
        "predicted_ttft_p50_ms": _percentile(recent, 0.5),
        "predicted_ttft_p95_ms": _percentile(recent, 0.95),
    }


def _percentile(ordered: list[float], share: float) -> float | None:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
