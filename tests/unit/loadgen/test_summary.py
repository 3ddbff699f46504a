"""From records to figures."""

import pytest

from loadgen.quantiles import Quantiles
from loadgen.runner import RunResult
from loadgen.summary import load_spread, summarize, token_gaps
from tests.support.records import failed, record, result


def near(found: Quantiles, value: float) -> bool:
    return found.p50 == pytest.approx(value, abs=0.01)


def test_latency_runs_from_the_scheduled_arrival_and_both_are_kept():
    latency = summarize(result([record(scheduled_s=0.5, sent_s=1.2)])).latency_ms
    assert near(latency.ttft, 1000)
    assert near(latency.ttft_sent, 300)
    assert near(latency.e2e, 1300)
    assert near(latency.e2e_sent, 600)


def test_tpot_leaves_out_the_tokens_that_came_with_the_first():
    bundled = record(completion_tokens=10, arrivals_s=[1.5, 1.8], arrival_tokens=[4, 6])
    assert near(summarize(result([bundled])).latency_ms.tpot, 50)


def test_tpot_of_a_single_arrival_does_not_exist():
    single = record(arrivals_s=[1.5], arrival_tokens=[3], last_token_s=1.5)
    assert summarize(result([single])).latency_ms.tpot.n == 0


def test_itl_is_per_token_and_the_raw_gap_is_kept():
    bundled = record(completion_tokens=5, arrivals_s=[1.5, 1.9], arrival_tokens=[1, 4])
    latency = summarize(result([bundled])).latency_ms
    assert latency.itl.n == 4
    assert near(latency.itl, 100)
    assert near(latency.chunk_gap, 400)


def test_gap_before_text_without_a_token_goes_to_the_next_token():
    gaps = token_gaps(record(arrivals_s=[1.0, 1.2, 1.5], arrival_tokens=[1, 0, 1]))
    assert list(gaps) == [pytest.approx(0.5)]


def test_failures_do_not_improve_latency_and_are_infinite_in_the_second_p95():
    records = [record(n) for n in range(18)] + [failed(number=n) for n in (18, 19)]
    summary = summarize(result(records))
    assert near(summary.latency_ms.ttft, 500)
    assert summary.latency_ms.ttft_failed_inf.p95 == "inf"
    assert (summary.ok, summary.errors, summary.unsent) == (18, 2, 0)
    assert summary.errors_by_kind == {"timeout": 2}


def test_turns_that_a_broken_conversation_never_sent_count_as_failed():
    summary = summarize(result([record(n) for n in range(10)], planned=20))
    assert summary.unsent == 10
    assert summary.latency_ms.ttft_failed_inf.p95 == "inf"


def test_stopped_run_does_not_blame_the_server_for_what_was_not_sent():
    stopped = result([record(n) for n in range(10)], planned=20, is_stopped=True)
    assert near(summarize(stopped).latency_ms.ttft_failed_inf, 500)


def test_http_errors_show_their_status_and_first_message():
    refused = failed("http", status=503, error="no replica")
    summary = summarize(result([refused, refused]))
    assert summary.errors_by_kind == {"http 503": 2}
    assert summary.error_examples == ["http 503: no replica"]


def test_hit_rate_is_weighted_by_tokens():
    records = [
        record(0, prompt_tokens=100, cached_tokens=0),
        record(1, prompt_tokens=900, cached_tokens=800),
    ]
    assert summarize(result(records)).hit_rate == 0.8


def test_silent_engine_has_no_hit_rate():
    assert summarize(result([record(prompt_tokens=100)])).hit_rate is None


def test_output_rate_counts_answered_tokens_over_the_whole_run():
    assert summarize(result([record(0), record(1), failed()])).output_tokens_per_s == 3.0


def test_spread_counts_replicas_that_got_nothing():
    records = [record(n, replica="r1") for n in range(4)]
    summary = summarize(result(records), replica_ids=("r1", "r2"))
    assert summary.load_spread == 2.0
    assert [(share.id, share.requests) for share in summary.replicas] == [("r1", 4), ("r2", 0)]


def test_even_load_has_a_spread_of_one():
    assert load_spread([5, 5, 5]) == 1.0
    assert load_spread([0, 0]) is None
    assert load_spread([]) is None


def test_client_is_bound_by_its_own_lag_only():
    capped = record(sent_s=1.4, cap_wait_s=0.4)
    late = record(sent_s=1.4)
    assert not summarize(result([capped])).client.is_bound
    assert summarize(result([late])).client.is_bound


def test_late_event_loop_makes_the_client_bound():
    assert summarize(result([record()], late_s=[0.001] * 90 + [0.2] * 10)).client.is_bound


def test_run_without_an_answer_has_figures_all_the_same():
    summary = summarize(RunResult(planned=0))
    assert (summary.ok, summary.hit_rate, summary.load_spread) == (0, None, None)
