"""What several routers agree on: who they are, and what each makes the replicas do."""

from router.shared.board import LoadBoard
from router.shared.connect import BadUrl, connect
from router.shared.memory import MemoryStore
from router.shared.notes import NoteBoard
from router.shared.owners import MemoryOwners, Owners, RedisOwners
from router.shared.peers import Peers, PeerTimes
from router.shared.protocol import Exchange, SharedStore, StoreFailed, StoreState
from router.shared.redis_store import RedisStore
from router.shared.snapshots import SharedSnapshots, SnapshotLimits

__all__ = [
    "BadUrl",
    "Exchange",
    "LoadBoard",
    "MemoryOwners",
    "MemoryStore",
    "NoteBoard",
    "Owners",
    "PeerTimes",
    "Peers",
    "RedisOwners",
    "RedisStore",
    "SharedSnapshots",
    "SharedStore",
    "SnapshotLimits",
    "StoreFailed",
    "StoreState",
    "connect",
]
