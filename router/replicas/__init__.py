"""Who can serve: replicas, the pool that knows them, probes of their health, discovery."""

from router.replicas.pool import Changes, Member, Pool
from router.replicas.replica import Replica, ReplicaId

__all__ = ["Changes", "Member", "Pool", "Replica", "ReplicaId"]
