"""Which replica, and why. Pure: no waiting, no input or output, same arguments, same answer."""

from router.routing.choosing import Ask, Choice, Chooser, Claim, Contender, Prefix
from router.routing.decision import Decision, Reason
from router.routing.policies import POLICIES, Policy
from router.routing.query import Candidate, RouteQuery
from router.routing.speeds import Speeds
from router.routing.ttft import Ttft, TtftModel

__all__ = [
    "POLICIES",
    "Ask",
    "Candidate",
    "Choice",
    "Chooser",
    "Claim",
    "Contender",
    "Decision",
    "Policy",
    "Prefix",
    "Reason",
    "RouteQuery",
    "Speeds",
    "Ttft",
    "TtftModel",
]
