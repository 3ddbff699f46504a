"""Was the client itself the bottleneck?"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from loadgen.quantiles import percentile
from loadgen.runner import RunResult

MAX_CLIENT_LAG_S: Final = 0.05
MAX_LOOP_LAG_S: Final = 0.025
MAX_CPU: Final = 0.9


class ClientHealth(msgspec.Struct, frozen=True):
    """`is_bound`: this program was too slow for its own schedule, so latencies are too high.

    True when the client's own send lag has a p99 above 50 ms, its event loop one above 25 ms, or
    one of its processes used more than 90 % of a core. Times in milliseconds; `cpu` is in cores,
    of all processes together, `cpu_us_per_event` of each SSE event that was read.
    """

    send_lag_ms_p50: float
    send_lag_ms_p99: float
    own_lag_ms_p99: float
    loop_lag_ms_p99: float
    loop_lag_ms_max: float
    cpu: float
    cpu_busiest: float
    cpu_us_per_event: float | None
    events_per_s: float
    processes: int
    is_bound: bool


def client_health(result: RunResult) -> ClientHealth:
    """The self-check; see `ClientHealth` for the limits."""
    lags = sorted(record.send_lag_s for record in result.records) or [0.0]
    own_p99_s = percentile(sorted(r.client_lag_s for r in result.records) or [0.0], 0.99)
    late = sorted(result.late_s) or [0.0]
    loop_p99_s = percentile(late, 0.99)
    duration_s = result.whole_s or result.duration_s or math.inf
    cpu_s = sum(result.cpu_s)
    busiest = max(result.cpu_s, default=0.0) / duration_s
    return ClientHealth(
        send_lag_ms_p50=_ms(percentile(lags, 0.5)),
        send_lag_ms_p99=_ms(percentile(lags, 0.99)),
        own_lag_ms_p99=_ms(own_p99_s),
        loop_lag_ms_p99=_ms(loop_p99_s),
        loop_lag_ms_max=_ms(late[-1]),
        cpu=round(cpu_s / duration_s, 3),
        cpu_busiest=round(busiest, 3),
        cpu_us_per_event=round(1e6 * cpu_s / result.events, 2) if result.events else None,
        events_per_s=round(result.events / duration_s, 1),
        processes=len(result.cpu_s),
        is_bound=own_p99_s > MAX_CLIENT_LAG_S or loop_p99_s > MAX_LOOP_LAG_S or busiest > MAX_CPU,
    )


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)
