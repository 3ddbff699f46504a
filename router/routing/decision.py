"""What a policy answers."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from router.replicas import ReplicaId


class Reason(StrEnum):
    """Why the first choice is the first choice."""

    MATCH = "match"
    """It holds the beginning of the prompt, and answers soonest."""
    EXPECTED = "expected"
    """It is computing the beginning of the prompt for another request."""
    LOAD = "load"
    """Waiting for a replica that holds more would take longer than computing anew."""
    COLD = "cold"
    """No replica holds enough to matter: consistent hashing over the prompt's beginning."""
    KEPT = "kept"
    """It keeps the response that the ask goes on from."""
    UNKNOWN = "unknown"
    """The central index did not answer in time: load, and consistent hashing as for a cold one."""
    SESSION = "session"
    LEAST_LOADED = "least-loaded"
    ROUND_ROBIN = "round-robin"
    RANDOM = "random"


HOMELESS: Final = frozenset((Reason.LEAST_LOADED, Reason.ROUND_ROBIN, Reason.RANDOM, Reason.KEPT))
"""Policies that give sessions no home move none; nor does what only one replica can answer."""


class Decision(Struct, frozen=True):
    """Replicas in order of preference. `costs_ms`: predicted TTFT by replica, where known."""

    replicas: tuple[ReplicaId, ...]
    reason: Reason
    costs_ms: Mapping[ReplicaId, float] = field(default_factory=dict)
