"""A benchmark of policies that was cut short goes on where it was."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from loadgen.cli import make_parser
from loadgen.options import UsageError
from loadgen.simulate import command
from loadgen.simulate.benchmark import Benchmark
from loadgen.simulate.fleet import Fleet
from loadgen.simulate.patterns import Groups, groups
from loadgen.simulate.suite import Case
from workers.engine.profile import load_profile


def parsed(path: Path, *more: str):
    words = ["simulate", "--case", "F", "--seeds", "1", "--oracle-samples", "0"]
    return make_parser().parse_args([*words, "--json", str(path), *more])


def run_policies(args, *policies):
    rows = command._earlier(args)
    shape = Groups(2, 3, 200, 50, 5, 10.0)
    case = Case("F", Fleet(profile=load_profile("h100-8b-bf16"), replicas=2),
                lambda seed: groups(seed, shape), "little")  # fmt: skip
    missing = [name for name in policies if name not in {row.policy for row in rows}]
    command._run_case(args, case, missing, rows, Console(file=io.StringIO()))
    return missing


def test_each_row_is_kept_and_not_computed_again(tmp_path):
    path = tmp_path / "policies.json"
    assert run_policies(parsed(path), "round-robin") == ["round-robin"]
    before = msgspec.json.decode(path.read_bytes(), type=Benchmark)
    assert [row.policy for row in before.rows] == ["round-robin"]
    again = run_policies(parsed(path, "--resume"), "round-robin", "random")
    assert again == ["random"]
    after = msgspec.json.decode(path.read_bytes(), type=Benchmark)
    assert after.rows[0] == before.rows[0]
    assert [row.policy for row in after.rows] == ["round-robin", "random"]


def test_what_was_made_otherwise_is_not_gone_on_with(tmp_path):
    path = tmp_path / "policies.json"
    assert command._earlier(parsed(path, "--resume")) == []
    made = Benchmark([], [], options=command._options(parsed(path)))
    path.write_bytes(msgspec.json.encode(made))
    assert command._earlier(parsed(path, "--resume")) == []
    with pytest.raises(UsageError, match="seeds 1"):
        command._earlier(parsed(path, "--resume", "--seeds", "2"))
    path.write_text("{}")
    with pytest.raises(UsageError, match="no benchmark"):
        command._earlier(parsed(path, "--resume"))
