"""What the section `routing` of the settings asks for."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import aiohttp

from router.collectors import ShadowSample
from router.metrics import Metrics
from router.newcomers import Newcomers
from router.openai.generation import Kind
from router.planner import OwnerOf, Planner
from router.queueing import NoQueue, Queue, QueueLimits
from router.replicas import Pool
from router.routing import POLICIES, Chooser
from router.routing.hot import HotBeginnings, NothingHot
from router.routing.shadow import BUCKETS_S, NoShadows, Shadows, Tally
from router.routing_settings import RoutingSettings
from router.settings import RouterConfig, SharedSettings, TokensSettings
from router.source import Source
from router.tokens import Tokenizers
from router.turns import Turns


@dataclass(frozen=True, slots=True)
class Waits:
    """What a plan may wait for beside its tokens: who holds the prompt, who keeps the response that
    it goes on from, a replica that can start it."""

    source: Source
    owner_of: OwnerOf
    queue: Queue | NoQueue


def planner(
    config: RouterConfig, pool: Pool, tokens: Tokenizers, chooser: Chooser, waits: Waits
) -> Planner:
    """Over the chooser that acts."""
    return Planner(
        pool=pool,
        tokenizer=tokens.tokenizer,
        source=waits.source,
        chooser=chooser,
        forward_ids=_kinds_with_ids(config.tokens),
        shadows=shadows(config.routing, chooser),
        owner_of=waits.owner_of,
        queue=waits.queue,
        hot=hot(config.routing, chooser.clock),
        turns=turns(config.shared, chooser),
    )


def turns(settings: SharedSettings, chooser: Chooser) -> Turns:
    """None is ever wanted where there are no other processes."""
    if settings.board is None:
        return Turns()
    return Turns(chooser.reservations.siblings, settings.turn_tokens, chooser.clock)


def _kinds_with_ids(settings: TokensSettings) -> frozenset[Kind]:
    asked = {Kind.COMPLETION: settings.forward_ids, Kind.CHAT: settings.forward_chat_ids}
    return frozenset(kind for kind, is_asked in asked.items() if is_asked)


def newcomers(
    config: RouterConfig, planner: Planner, session: aiohttp.ClientSession, metrics: Metrics
) -> Newcomers:
    """While this router starts, nobody is new: until then it waits for replicas anyway."""
    clock = planner.chooser.clock
    newcomers = Newcomers(
        ramp=planner.chooser.ramp,
        hot=planner.hot,
        session=session,
        clock=clock,
        settled_at=clock() + config.index.restore_timeout_s,
        warm_s=config.routing.warm_s,
        on_warmed=metrics.watch_warm_up(),
    )
    planner.pool.on_health.append(newcomers.health_changed)
    return newcomers


def hot(settings: RoutingSettings, clock: Callable[[], float]) -> HotBeginnings | NothingHot:
    """Nothing without a budget."""
    return HotBeginnings(clock, settings.warm_tokens) if settings.warm_tokens else NothingHot()


def queue(
    settings: RoutingSettings, clock: Callable[[], float], metrics: Metrics
) -> Queue | NoQueue:
    """None without an SLO: nobody could say when to wait."""
    if settings.slo_ttft_ms is None:
        return NoQueue()
    limits = QueueLimits(
        slo_ms=settings.slo_ttft_ms,
        requests=settings.queue_requests,
        wait_s=settings.queue_wait_s,
        then_refuse=settings.queue_then == "refuse",
    )
    queue = Queue(limits, clock)
    queue.on_end = metrics.watch_queue(lambda: queue.length)
    return queue


def shadows(settings: RoutingSettings, chooser: Chooser) -> Shadows | NoShadows:
    """Those that are named, each with a chance of its own."""
    if not settings.shadow:
        return NoShadows()
    others = {name: POLICIES[name](Random()) for name in settings.shadow}
    return Shadows.of(chooser, settings.policy, others)


def shadow_samples(tallies: Sequence[Tally]) -> Iterator[ShadowSample]:
    """Each policy as `/metrics` shows it."""
    bounds = [*map(str, map(float, BUCKETS_S)), "+Inf"]
    for tally in tallies:
        yield ShadowSample(
            policy=tally.policy,
            same=tally.same,
            others=tally.requests - tally.same,
            prompt_tokens=tally.prompt_tokens,
            hit_tokens=tally.hit_tokens,
            ttft_buckets=list(zip(bounds, accumulate(tally.buckets), strict=True)),
            ttft_sum_s=tally.ttft_sum_ms / 1e3,
        )
