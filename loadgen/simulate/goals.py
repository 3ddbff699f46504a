"""What the default policy is held to, and by how much each goal is met or missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from loadgen.simulate.benchmark import Row, Verdict

MOST_OVER_BEST: Final = 0.03
MOST_REGRET: Final = 0.05
LEAST_OF_BOUND: Final = 0.97
A_TTFT_P90_MS: Final = 260.0
A_OUTPUT_RATIO: Final = 2.1
F_TTFT_RATIO: Final = 3.0
F_SAME_RATE: Final = 0.05
NOTHING: Final = 0.001
"""A difference that nobody would see."""


class Goal(msgspec.Struct, frozen=True):
    """`is_met` by what is `shown`."""

    name: str
    is_met: bool
    shown: str


def of_verdicts(verdicts: Sequence[Verdict]) -> Iterator[Goal]:
    """What holds on every workload."""
    for one in verdicts:
        noise = ", within noise" if one.is_within_noise else ""
        yield Goal(
            f"{one.case}: P95 TTFT best or within 3 %",
            one.over_best <= MOST_OVER_BEST,
            f"{100 * one.over_best:+.1f} % over {one.best}{noise}",
        )
        yield Goal(
            f"{one.case}: not worse than round robin beyond noise",
            one.over_control <= NOTHING or one.is_control_within_noise,
            f"{100 * one.over_control:+.1f} %",
        )
        yield Goal(
            f"{one.case}: regret ≤ 5 %",
            one.regret <= MOST_REGRET,
            f"{100 * one.regret:.1f} %; "
            f"{100 * one.regret_later:.1f} % when every replica had answered something",
        )
        yield Goal(
            f"{one.case}: hits ≥ 97 % of one pooled cache",
            one.of_bound >= LEAST_OF_BOUND,
            f"{100 * one.of_bound:.1f} %",
        )


def of_rows(ours: Row, control: Row) -> Iterator[Goal]:
    """What holds on A and on F, against the control."""
    if ours.case == "A":
        p90_ms = _mean([figures.ttft_p90_ms for figures in ours.stages["40/s"]])
        yield Goal("A: TTFT p90 ≤ 260 ms at 40/s", p90_ms <= A_TTFT_P90_MS, f"{p90_ms:.0f} ms")
        ratio = _peak(ours) / _peak(control)
        yield Goal(
            "A: peak output ≥ 2.1 x round robin's",
            ratio >= A_OUTPUT_RATIO,
            f"{_peak(ours):,.0f} to {_peak(control):,.0f} tokens/s: {ratio:.2f} x",
        )
    if ours.case == "F":
        ratio = control.ttft_p95_ms.mean / ours.ttft_p95_ms.mean
        more = ours.output_tokens_per_s.mean / control.output_tokens_per_s.mean - 1.0
        yield Goal(
            "F: P95 TTFT ≥ 3 x lower than round robin's at equal throughput",
            ratio >= F_TTFT_RATIO and more >= -F_SAME_RATE,
            f"{ratio:.1f} x, throughput {100 * more:+.1f} %",
        )


def _peak(row: Row) -> float:
    """Output tokens/s of the stage that has most."""
    return max(_mean([one.output_tokens_per_s for one in stage]) for stage in row.stages.values())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
