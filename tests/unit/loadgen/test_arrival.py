"""When requests are due."""

import itertools
import math
import random
import statistics

import pytest

from loadgen.arrival import Arrivals, Ramp, arrival_times


def gaps(kind: str, rate: float, n: int, burstiness: float = 1.0) -> list[float]:
    times = list(itertools.islice(arrival_times(kind, rate, random.Random(1), burstiness), n + 1))
    return [b - a for a, b in itertools.pairwise(times)]


def test_constant_arrivals_do_not_drift():
    times = itertools.islice(arrival_times("constant", 3.0, random.Random()), 3001)
    assert list(times)[-1] == 1000.0


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gaps_have_the_rate_and_the_burstiness_asked_for(burstiness, variation):
    found = gaps("poisson", 5.0, 20_000, burstiness)
    mean = statistics.mean(found)
    assert mean == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(found) / mean == pytest.approx(variation, rel=0.05)


def test_infinite_rate_sends_all_at_once():
    for kind in ("constant", "poisson"):
        assert set(gaps(kind, math.inf, 10)) == {0.0}


def test_same_seed_gives_the_same_times():
    assert gaps("poisson", 5.0, 50) == gaps("poisson", 5.0, 50)


@pytest.mark.parametrize(("kind", "rate"), [("poisson", 0.0), ("poisson", -1.0), ("other", 1.0)])
def test_what_cannot_be_a_schedule_is_refused(kind, rate):
    with pytest.raises(ValueError, match=r"positive|unknown arrival"):
        arrival_times(kind, rate, random.Random())


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
@pytest.mark.parametrize(("start", "end"), [(1.0, 9.0), (8.0, 2.0), (3.0, 3.0)])
def test_ramp_has_its_rate_at_every_time(strategy: str, start: float, end: float):
    ramp = Ramp(strategy=strategy, start_per_s=start, end_per_s=end, seconds=100.0)
    arrivals = Arrivals(kind="constant", ramp=ramp)
    times = list(itertools.takewhile(lambda t: t < 200, arrivals.times(random.Random(1))))
    assert times == sorted(times)

    def rate(at: float) -> float:
        return sum(at - 5 <= t < at + 5 for t in times) / 10

    def wished(share: float) -> float:
        if strategy == "linear":
            return start + share * (end - start)
        return start * math.exp(share * math.log(end / start))

    assert rate(5) == pytest.approx(wished(0.05), rel=0.1)
    assert rate(50) == pytest.approx(wished(0.5), rel=0.1)
    assert rate(150) == pytest.approx(end, rel=0.1)


def test_conversations_ramp_as_their_requests_do():
    ramp = Ramp(strategy="linear", start_per_s=4, end_per_s=8, seconds=10)
    divided = Arrivals(rate_per_s=4, ramp=ramp).divided(4)
    assert (divided.rate_per_s, divided.ramp) == (
        1.0, Ramp(strategy="linear", start_per_s=1, end_per_s=2, seconds=10),
    )  # fmt: skip


def test_ramp_that_goes_nowhere_is_refused():
    with pytest.raises(ValueError, match="positive"):
        Ramp(strategy="linear", start_per_s=0, end_per_s=1, seconds=1)
