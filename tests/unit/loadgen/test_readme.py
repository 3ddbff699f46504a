"""What the README promises is there: tests, scenarios, the example."""

import re
from pathlib import Path

from loadgen.scenario import shipped

ROOT = Path(__file__).parents[3]
README = (ROOT / "loadgen" / "README.md").read_text("utf-8")
TESTS = "\n".join(
    path.read_text("utf-8")
    for folder in ("unit/loadgen", "integration/loadgen", "support")
    for path in (ROOT / "tests" / folder).glob("*.py")
    if path != Path(__file__)
)


def test_every_test_that_is_named_exists():
    named = set(re.findall(r"`(test_\w+)", README))
    assert len(named) >= 8
    files = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert {name for name in named if f"def {name}" not in TESTS and name not in files} == set()


def test_every_script_of_the_scripted_engine_that_is_named_exists():
    named = set(re.findall(r"`([a-z]+_[a-z_]+)`", README))
    known = set(re.findall(r"^def (\w+)\(", TESTS, re.MULTILINE))
    assert {"role_first", "several_per_chunk", "error_midway"} <= named & known


def test_scenarios_that_are_named_are_shipped():
    named = set(re.findall(r"--scenario ([\w-]+)", README)) - {"FILE"}
    assert named <= set(shipped())


def test_example_page_is_small_and_whole():
    page = ROOT / "loadgen" / "example.html"
    assert page.stat().st_size < 500_000
    text = page.read_text("utf-8")
    assert text.count("<svg") >= 5
    assert text.rstrip().endswith("</html>")
