"""What the section `routing` of the settings asks for."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random

from router.collectors import ShadowSample
from router.planner import OwnerOf, Planner
from router.replicas import Pool
from router.routing import POLICIES, Chooser
from router.routing.shadow import BUCKETS_S, NoShadows, Shadows, Tally
from router.routing_settings import RoutingSettings
from router.settings import RouterConfig
from router.tokens import Tokenizers


def planner(
    config: RouterConfig, pool: Pool, tokens: Tokenizers, chooser: Chooser, owner_of: OwnerOf
) -> Planner:
    """Over the chooser that acts."""
    return Planner(
        pool=pool,
        tokenizer=tokens.tokenizer,
        chooser=chooser,
        memo=tokens.blocks,
        forward_ids=config.tokens.forward_ids,
        shadows=shadows(config.routing, chooser),
        owner_of=owner_of,
    )


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
