"""What the section `shared` of the settings asks for, beside load."""

from router.settings import SharedSettings
from router.shared import MemoryOwners, Owners, Peers, RedisOwners, RedisStore
from router.supervise import Supervisor


def owners(settings: SharedSettings, peers: Peers, supervisor: Supervisor) -> Owners:
    """Which replicas keep stored responses; of all routers, where they share a Redis."""
    own = MemoryOwners(peers.clock, settings.responses_ttl_s, settings.max_responses)
    if not isinstance(store := peers.store, RedisStore):
        return own
    shared = RedisOwners(own, store, store.deadline_s)
    supervisor.run("responses", shared.work)
    return shared
