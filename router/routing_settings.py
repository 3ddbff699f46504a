"""The section `routing` of the settings."""

from typing import Annotated, Literal

from router.routing import POLICIES
from router.setting_types import Positive, PositiveMs, Seconds, Settings, doc


class RoutingSettings(Settings, frozen=True):
    """How a replica is chosen."""

    policy: Annotated[str, doc("One of " + ", ".join(POLICIES) + ".")] = "cache-aware"
    shadow: Annotated[
        tuple[str, ...],
        doc("Policies that are asked of every request beside it, and compared; none of them acts."),
    ] = ()
    slo_ttft_ms: Annotated[
        PositiveMs | None,
        doc(
            "While every replica's predicted TTFT is above, requests wait in the router; none: "
            "they never do."
        ),
    ] = None
    queue_requests: Annotated[
        Positive, doc("Most requests that wait there; more are refused (503).")
    ] = 1000
    queue_wait_s: Annotated[Seconds, doc("Longest time that one waits there.", gt=0)] = 30.0
    queue_then: Annotated[
        Literal["send", "refuse"], doc("What is done with one that has waited for so long.")
    ] = "send"
    ramp_s: Annotated[
        Seconds, doc("A new replica's share of prompts grows for so long; 0: not at all.", ge=0)
    ] = 0.0
    warm_tokens: Annotated[
        int,
        doc("Tokens of the hottest beginnings that it computes before it gets any; 0: none.", ge=0),
    ] = 0
    warm_s: Annotated[Seconds, doc("Longest time for that.", gt=0)] = 30.0
    session_headers: Annotated[
        tuple[str, ...], doc("Request headers that name a session, first found wins.")
    ] = ("x-session-id",)
