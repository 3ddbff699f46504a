"""The section `routing` of the settings."""

from typing import Annotated

from router.routing import POLICIES
from router.setting_types import Settings, doc


class RoutingSettings(Settings, frozen=True):
    """How a replica is chosen."""

    policy: Annotated[str, doc("One of " + ", ".join(POLICIES) + ".")] = "cache-aware"
    shadow: Annotated[
        tuple[str, ...],
        doc("Policies that are asked of every request beside it, and compared; none of them acts."),
    ] = ()
    session_headers: Annotated[
        tuple[str, ...], doc("Request headers that name a session, first found wins.")
    ] = ("x-session-id",)
