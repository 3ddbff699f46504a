"""What the page shows is what was measured."""

from loadgen.page import Run, plots_of
from loadgen.summary import summarize
from loadgen.svg import MAX_POINTS, Plot, Series, thin, ticks
from tests.support.records import failed, record, result


def run(*records, planned: int | None = None) -> Run:
    whole = result(list(records), planned)
    return Run("one", summarize(whole), whole.records, whole.planned)


def test_curve_of_ttft_ends_below_100_percent_when_some_failed():
    (plot, *_) = plots_of([run(record(0), record(1), record(2), failed(number=3))])
    assert [y for _, y in plot.series[0].points] == [25, 50, 75]


def test_curve_counts_one_run_s_requests_and_not_those_of_all_repeats():
    one = run(record(0), record(1))
    pooled = summarize(result([record(n) for n in range(4)]))
    (plot, *_) = plots_of([Run("one", pooled, one.records, one.planned)])
    assert plot.series[0].points[-1][1] == 100


def test_run_without_an_answer_has_no_plots():
    assert plots_of([run(failed())]) == []


def test_replicas_and_turns_are_drawn_where_there_are_some():
    titles = {
        plot.title
        for plot in plots_of(
            [
                run(
                    record(0, replica="r1", prompt_tokens=9, cached_tokens=0),
                    record(1, turn=1, replica="r2", prompt_tokens=9, cached_tokens=6),
                )
            ]
        )
    }
    assert {"Requests by replica", "Hit rate by turn"} <= titles


def test_many_points_are_thinned_from_end_to_end():
    points = [(float(n), 1.0) for n in range(10_000)]
    kept = thin(points)
    assert (len(kept), kept[0], kept[-1]) == (MAX_POINTS, points[0], points[-1])


def test_ticks_are_round_and_few():
    for high in (0.003, 1.0, 7.3, 99.0, 12_345.0):
        found = ticks(high)
        assert found[0] == 0
        assert 3 <= len(found) <= 6
        assert found[-1] <= high * 1.001


def test_names_cannot_break_out_of_the_picture():
    plot = Plot("<b>", "&", '"', [Series("<i>", [(0, 1)]), Series("x", [(1, 2)])])
    assert "<b>" not in plot.svg()
    assert "<i>" not in plot.svg()
