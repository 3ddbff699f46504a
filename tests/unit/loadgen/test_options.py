"""The command line: documented, and refused where it makes no sense."""

import argparse
import itertools
from pathlib import Path

import pytest

from loadgen.cli import make_parser
from loadgen.demo import demo_options
from loadgen.options import UsageError, make_settings, make_target
from loadgen.recipes import workload_maker
from loadgen.text import Prose


def parse(*arguments: str) -> argparse.Namespace:
    return make_parser().parse_args(["run", "--url", "http://h", "--model", "m", *arguments])


def test_every_option_is_documented():
    readme = Path(__file__).parents[3].joinpath("loadgen", "README.md").read_text()
    commands = next(a for a in make_parser()._actions if a.choices)
    assert commands.choices is not None
    options = {
        option
        for parser in dict(commands.choices).values()
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    assert {option for option in options if option not in readme} == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--num-requests", "0"],
        ["--request-rate", "-1"],
        ["--workload", "other"],
        ["--extra-body", "[1]"],
        ["--burstiness", "0"],
    ],
)
def test_values_out_of_range_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        parse(*arguments)
    assert arguments[0] in capsys.readouterr().err


def test_request_rate_of_conversations_counts_turns():
    options = ("--request-rate", "8", "--turns", "4", "--arrival", "constant")
    workload = workload_maker(parse(*options))(Prose(0), "")
    first, second, third = itertools.islice((s.start_s for s in workload.sessions()), 3)
    assert first == 0
    assert (second, third) == (0.5, 1.0)


def test_extra_body_wins_over_what_is_sent_by_default():
    target = make_target(parse("--extra-body", '{"ignore_eos": true, "temperature": 1}'), "u", "m")
    body = target.body((), 4)
    assert b'"ignore_eos":true' in body
    assert b'"temperature":1' in body


def test_cache_is_cold_unless_told_otherwise():
    assert make_settings(parse()).cache == "cold"
    assert make_settings(parse("--cache", "as-is")).cache == "as-is"


def test_option_of_another_workload_is_refused():
    with pytest.raises(UsageError, match="--documents: not for --workload multi-turn"):
        workload_maker(parse("--documents", "3"))


def test_more_processes_than_requests_at_once_are_refused():
    with pytest.raises(UsageError, match="more than requests at once"):
        make_settings(parse("--processes", "4", "--max-concurrency", "3"))


def test_demo_is_a_comparison_that_can_be_typed():
    options = demo_options(Path("logs"))
    assert options.policy == ["round-robin", "session", "cache-aware"]
    assert options.session_header == "auto"
