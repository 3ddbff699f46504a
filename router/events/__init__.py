"""How the index learns what engines hold."""

from router.events.ingest import follow
from router.events.protocol import (
    EventSource,
    FramesLost,
    Item,
    LinkDown,
    LinkUp,
    NoReplay,
    Quiet,
    ReplayUnavailable,
)
from router.events.sequence import SequenceTracker, Verdict
from router.events.standing import IngestCounters, Standing
from router.events.trust import ReplicaTrust, Trust, TrustChange
from router.events.zmq_bind import BoundTopic, ZmqBind
from router.events.zmq_source import DialTimes, ZmqDial

__all__ = [
    "BoundTopic",
    "DialTimes",
    "EventSource",
    "FramesLost",
    "IngestCounters",
    "Item",
    "LinkDown",
    "LinkUp",
    "NoReplay",
    "Quiet",
    "ReplayUnavailable",
    "ReplicaTrust",
    "SequenceTracker",
    "Standing",
    "Trust",
    "TrustChange",
    "Verdict",
    "ZmqBind",
    "ZmqDial",
    "follow",
]
