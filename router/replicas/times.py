"""How often replicas are looked at."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProbeTimes:
    """Seconds: between probes of a healthy replica, of an unhealthy one, and for one answer."""

    interval_s: float = 5.0
    retry_interval_s: float = 0.5
    timeout_s: float = 2.0
    failures: int = 2
    """Probes in a row that fail before a replica is out (a refused connection: at once)."""
