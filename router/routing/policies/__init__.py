"""Every policy by name. A new one is one file and one row here."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from router.routing.policies.approximate import Approximate
from router.routing.policies.cache_aware import CacheAware
from router.routing.policies.least_loaded import LeastLoaded
from router.routing.policies.lmetric import LMetric
from router.routing.policies.power_of_two import PowerOfTwo
from router.routing.policies.prefix import Prefix
from router.routing.policies.protocol import Policy
from router.routing.policies.random_choice import RandomChoice
from router.routing.policies.round_robin import RoundRobin
from router.routing.policies.session import Session

POLICIES: Final[Mapping[str, Callable[[Random], Policy]]] = {
    "cache-aware": lambda rng: CacheAware(),
    "approximate": lambda rng: Approximate(),
    "prefix": lambda rng: Prefix(),
    "lmetric": lambda rng: LMetric(),
    "session": lambda rng: Session(),
    "least-loaded": lambda rng: LeastLoaded(),
    "power-of-two": PowerOfTwo,
    "round-robin": lambda rng: RoundRobin(),
    "random": RandomChoice,
}

__all__ = ["POLICIES", "Policy"]
