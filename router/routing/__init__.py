"""Which replica, and why. Pure: no waiting, no input or output, same arguments, same answer."""

from router.routing.decision import Decision, Reason
from router.routing.policies import POLICIES, Policy
from router.routing.query import Candidate, RouteQuery
from router.routing.ttft import Speeds, Ttft, TtftModel

__all__ = [
    "POLICIES",
    "Candidate",
    "Decision",
    "Policy",
    "Reason",
    "RouteQuery",
    "Speeds",
    "Ttft",
    "TtftModel",
]
