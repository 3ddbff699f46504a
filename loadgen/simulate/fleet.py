"""What is simulated beside the traffic: replicas, routers, faults, and when the fleet changes."""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.engine.profile import Profile


@dataclass(frozen=True, slots=True)
class Change:
    """At `at_s` after the measured part began: replicas are added, drained or killed."""

    at_s: float
    add: int = 0
    drain: int = 0
    kill: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """`slowness`: of the first replicas, 1.0 for the rest. Times in seconds.

    `event_delay_s`: from the end of a step to the index. `event_jitter_s`: up to so much more, so
    that batches overtake each other. `event_loss`: share of batches that never arrive.
    `network_s`: one way, client to engine. `reading_s`: until the prompt's text is tokens.
    `load_sharing_s`: how long until a router knows what another has in flight; None: never.
    `ramp_s`, `warm_tokens`: likewise. `starting`: how slow an added replica is, for how long.
    `slo_ttft_ms`, `queue_wait_s`: see `routing.slo_ttft_ms` of the router.
    """

    profile: Profile
    replicas: int
    block_size: int = 64
    kv_tokens: int | None = None
    slowness: tuple[float, ...] = ()
    routers: int = 1
    load_sharing_s: float | None = None
    slo_ttft_ms: float | None = None
    queue_wait_s: float = 30.0
    event_delay_s: float = 0.002
    event_jitter_s: float = 0.0
    event_loss: float = 0.0
    network_s: float = 0.0005
    reading_s: float = 0.0
    ramp_s: float = 0.0
    warm_tokens: int = 0
    starting: tuple[float, float] = (1.0, 0.0)
    changes: tuple[Change, ...] = field(default=())

    @property
    def num_blocks(self) -> int:
        return (self.kv_tokens or self.profile.kv_tokens) // self.block_size + 1

    def slowness_of(self, number: int) -> float:
        return self.slowness[number] if number < len(self.slowness) else 1.0
