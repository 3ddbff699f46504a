"""How the index learns what engines hold."""

from router.events.ingest import IngestCounters, Standing, follow
from router.events.protocol import EventSource, Item, LinkDown, LinkUp, Quiet, ReplayUnavailable
from router.events.sequence import SequenceTracker, Verdict
from router.events.trust import ReplicaTrust, Trust, TrustChange
from router.events.zmq_bind import BoundTopic, ZmqBind
from router.events.zmq_source import DialTimes, ZmqDial

__all__ = [
    "BoundTopic",
    "DialTimes",
    "EventSource",
    "IngestCounters",
    "Item",
    "LinkDown",
    "LinkUp",
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
