"""Each replica in words and numbers, as `/debug/replicas` shows it."""

from typing import Any

from router.central import CentralIndex
from router.events.keeper import Watching
from router.index.tiers import TieredIndex
from router.replicas import Member
from router.runtime import Runtime


def describe_replicas(runtime: Runtime) -> list[dict[str, Any]]:
    """All that the router knows and believes of each, in the order of the pool."""
    return [_describe(runtime, member) for member in runtime.pool]


def describe_known(
    index: TieredIndex | CentralIndex, keeper: Watching, replica_id: str
) -> dict[str, Any]:
    """What is known of its cache, and how well."""
    watched = keeper.of(replica_id)
    return {
        "trust": watched.trust.trust,
        "trust_reason": watched.trust.reason,
        "epoch": watched.trust.epoch,
        "event_counters": watched.counters,
        "index_blocks": index.replicas().get(replica_id, 0),
        "restored_blocks": keeper.restored.get(replica_id, 0),
        "block_sizes": sorted(index.block_sizes(replica_id)),
    }


def _describe(runtime: Runtime, member: Member) -> dict[str, Any]:
    load = runtime.reservations.load(member.id)
    return {
        "id": member.id,
        "url": member.replica.url,
        "events_url": member.replica.events_url,
        "role": member.replica.role,
        "is_healthy": member.is_healthy,
        "breaker": member.breaker.position,
        "share": runtime.planner.chooser.ramp.share(member.id, runtime.clock()),
        "is_full": member.full_until > runtime.clock(),
        "last_error": member.last_error,
        "models": sorted(member.models),
        **describe_known(runtime.index, runtime.keeper, member.id),
        "load": load,
        "in_flight": load.in_flight,
        "cache_tokens": member.cache_tokens,
        "engine": member.report,
        "ttft_model": runtime.speeds.of(member.id, member.base_model),
    }
