"""The default's rule over what was routed before: for engines that publish no events."""

from router.routing.policies.cache_aware import CacheAware


class Approximate(CacheAware):
    """Matches come from this router's own history, which no eviction corrects."""

    uses_history = True
