"""Each replica in words and numbers, as `/debug/replicas` shows it."""

from typing import Any

from router.replicas import Member
from router.runtime import Runtime


def describe_replicas(runtime: Runtime) -> list[dict[str, Any]]:
    """All that the router knows and believes of each, in the order of the pool."""
    return [_describe(runtime, member) for member in runtime.pool]


def _describe(runtime: Runtime, member: Member) -> dict[str, Any]:
    watched, load = runtime.keeper.of(member.id), runtime.reservations.load(member.id)
    return {
        "id": member.id,
        "url": member.replica.url,
        "events_url": member.replica.events_url,
        "role": member.replica.role,
        "is_healthy": member.is_healthy,
        "breaker": member.breaker.position,
        "is_full": member.full_until > runtime.clock(),
        "last_error": member.last_error,
        "models": sorted(member.models),
        "trust": watched.trust.trust,
        "trust_reason": watched.trust.reason,
        "epoch": watched.trust.epoch,
        "event_counters": watched.counters,
        "index_blocks": runtime.index.replicas().get(member.id, 0),
        "restored_blocks": runtime.keeper.restored.get(member.id, 0),
        "block_sizes": sorted(runtime.index.block_sizes(member.id)),
        "load": load,
        "in_flight": load.in_flight,
        "cache_tokens": member.cache_tokens,
        "engine": member.report,
        "ttft_model": runtime.speeds.of(member.id, member.base_model),
    }
