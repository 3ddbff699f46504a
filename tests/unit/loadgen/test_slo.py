"""Limits on requests and on runs; the window of what counts."""

import pytest

from loadgen.slo import goodput, judge, parse_goodput, parse_slo
from loadgen.summary import Summary, summarize
from loadgen.window import Window
from tests.support.records import failed, record, result


def summary(*records) -> Summary:
    return summarize(result(list(records)))


def test_goodput_is_a_share_of_all_planned_and_failures_are_never_good():
    records = [record(0), record(1, first_token_s=2.0), failed(number=2)]
    found = goodput(records, planned=4, duration_s=2.0, limits_ms={"ttft": 600})
    assert found is not None
    assert (found.good, found.share, found.per_s) == (1, 0.25, 0.5)


def test_all_limits_must_be_met_and_each_is_told():
    records = [record(0), record(1, last_token_s=9.0)]
    found = goodput(records, 2, 1.0, {"ttft": 600, "e2el": 1000})
    assert found is not None
    assert found.good == 1
    assert found.met == {"ttft": 1.0, "e2el": 0.5}


def test_answer_of_one_token_has_no_tpot_to_miss():
    single = record(arrivals_s=[1.5], arrival_tokens=[1], completion_tokens=1, last_token_s=1.5)
    found = goodput([single], 1, 1.0, {"tpot": 10})
    assert found is not None
    assert found.good == 1


def test_without_limits_there_is_no_goodput():
    assert goodput([record()], 1, 1.0, {}) is None


def test_p95_slo_counts_failures_as_infinite():
    records = [record(n) for n in range(18)] + [failed(number=n) for n in (18, 19)]
    (verdict,) = judge(summary(*records), {"p95_ttft_ms": 1e9})
    assert (verdict.found, verdict.is_met) == ("inf", False)


def test_slos_have_a_direction():
    run = summary(record(0, prompt_tokens=100, cached_tokens=80))
    verdicts = judge(run, {"hit_rate": 0.9, "error_share": 0.0, "p50_tpot_ms": 150.0})
    assert [one.is_met for one in verdicts] == [False, True, True]


def test_slo_without_a_figure_is_missed():
    (verdict,) = judge(summary(record()), {"hit_rate": 0.1})
    assert (verdict.found, verdict.is_met) == (None, False)


@pytest.mark.parametrize("text", ["ttft", "ttft:", "speed:3", "ttft:0", "ttft:-1"])
def test_bad_goodput_is_refused(text):
    with pytest.raises(ValueError, match=r"is none of|positive|could not"):
        parse_goodput(text)


@pytest.mark.parametrize("text", ["p95_ttft_ms", "p95_ttft=3", "p42_ttft_ms=1", "hit_rate=-1"])
def test_bad_slo_is_refused(text):
    with pytest.raises(ValueError, match=r"is none of|positive|could not"):
        parse_slo(text)


def test_names_are_those_of_other_tools():
    assert parse_goodput("e2e:2000") == parse_goodput("e2el:2000") == ("e2el", 2000.0)


def test_warm_up_and_cool_down_are_left_out_of_all_figures():
    records = [record(n, scheduled_s=float(n), sent_s=float(n), end_s=n + 0.5) for n in range(10)]
    whole = result(records, planned=12)
    kept = Window(warmup_s=2.0, cooldown_s=3.0).of(whole)
    assert [one.number for one in kept.records] == [2, 3, 4, 5, 6]
    assert (kept.planned, kept.duration_s) == (7, 4.5)
    assert [one.number for one in Window(warmup_requests=8).of(whole).records] == [8, 9]
    assert Window().of(whole) is whole
