"""What one client may take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Of the listener. `max_connections_per_client` 0: as many as it likes."""

    max_body_bytes: int = 64 * 2**20
    max_head_bytes: int = 16 * 2**10
    max_headers: int = 128
    head_timeout_s: float = 30.0
    body_timeout_s: float = 120.0
    keepalive_s: float = 75.0
    max_connections_per_client: int = 0
