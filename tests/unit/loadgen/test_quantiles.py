"""Percentiles of raw samples."""

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.quantiles import confidence, percentile, quantiles

SAMPLES = st.lists(st.floats(0, 1e6), min_size=2, max_size=200)


@settings(deadline=None)
@given(SAMPLES)
def test_percentiles_equal_the_standard_library_s_linear_ones(samples):
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    ordered = sorted(samples)
    for rank in (50, 90, 95, 99):
        expected = pytest.approx(cuts[rank - 1], rel=1e-9, abs=1e-9)
        assert percentile(ordered, rank / 100) == expected


def test_values_keep_their_digits():
    # A tool that puts samples into buckets cannot tell 237 from 240.
    assert quantiles([237.0] * 5).p95 == 237.0


def test_no_sample_gives_no_figure():
    found = quantiles([])
    assert (found.n, found.p95, found.mean, found.p95_ci) == (0, None, None, None)


def test_failures_as_infinity_push_the_tail_but_not_the_median():
    found = quantiles([100.0] * 90 + [math.inf] * 10)
    assert (found.p50, found.p95, found.mean) == (100.0, "inf", None)


def test_interval_holds_the_percentile_and_narrows_with_samples():
    few, many = [float(n) for n in range(100)], [n / 100 for n in range(10_000)]
    widths = []
    for ordered in (few, many):
        low, high = confidence(ordered, 0.95)
        assert low <= percentile(ordered, 0.95) <= high
        widths.append(high - low)
    assert widths[1] < widths[0] / 5
