"""The demo's last lines say what the figures say."""

import msgspec
from rich.console import Console

from loadgen.comparison import Column, Comparison, comparison_table
from loadgen.demo import conclusions
from loadgen.record import Record
from loadgen.runner import RunResult
from loadgen.summary import summarize


def column(
    policy: str, ttft_s: float, cached: int, bound: float = 0.95, lag_s: float = 0
) -> Column:
    """One request of 1,000 prompt tokens."""
    record = Record(
        number=0,
        session="s",
        turn=0,
        outcome="ok",
        scheduled_s=0.0,
        sent_s=lag_s,
        end_s=2.0,
        first_token_s=ttft_s,
        last_token_s=ttft_s,
        prompt_tokens=1000,
        cached_tokens=cached,
        completion_tokens=1,
        arrivals_s=[ttft_s],
        arrival_tokens=[1],
        replica="r1",
    )
    summary = summarize(RunResult(planned=1, records=[record], duration_s=2.0))
    summary = msgspec.structs.replace(summary, hit_rate_bound=bound)
    return Column(
        policy=policy,
        ttft_ms={"p95": summary.latency_ms.ttft.p95},
        hit_rate=summary.hit_rate,
        hit_rate_bound=bound,
        errors=0,
        output_tokens_per_s=summary.output_tokens_per_s,
        load_spread=summary.load_spread,
        summary=summary,
    )


def compared(*columns: Column) -> Comparison:
    return Comparison(started_at="now", parameters={}, runs=list(columns))


def test_goal_met_is_said_with_figures():
    latency, cache, _ = conclusions(
        compared(column("round-robin", 0.9, 500), column("cache-aware", 0.3, 940))
    )
    assert "300 ms under cache-aware, 900 ms under round-robin: 3.0x lower." in latency
    assert "94.0 % under cache-aware, 1.0 points below the bound of 95.0 %" in cache
    assert "computed 500 prompt tokens instead of 60" in cache


def test_goal_missed_is_said_as_plainly():
    latency, cache, _ = conclusions(
        compared(column("round-robin", 0.5, 500), column("cache-aware", 0.4, 800))
    )
    assert "less than the 2x to expect" in latency
    assert "more than the 3 to expect" in cache


def test_busy_machine_is_the_next_thing_to_change():
    lines = conclusions(
        compared(column("round-robin", 0.5, 0, lag_s=0.2), column("cache-aware", 0.4, 0))
    )
    assert "client-bound" in lines[2]


def test_stopped_demo_draws_no_conclusion():
    assert conclusions(compared(column("round-robin", 0.5, 0))) == [
        "stopped before there was something to compare"
    ]


def test_table_has_a_column_for_each_and_the_bound_beside_the_hit_rate():
    console = Console(width=120, color_system=None)
    with console.capture() as shown:
        console.print(
            comparison_table(
                compared(column("round-robin", 0.9, 500), column("cache-aware", 0.3, 940))
            )
        )
    lines = shown.get().splitlines()
    (p95,) = (line for line in lines if line.strip().startswith("P95 TTFT, ms"))
    assert p95.split()[-2:] == ["900", "300"]
    hit, bound = (line.split() for line in lines if "hit" in line)
    assert hit[-4:] == ["50.0", "%", "94.0", "%"]
    assert bound[-4:] == ["95.0", "%", "95.0", "%"]
