"""Tables that say which test holds what name tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLES = sorted(
    path
    for folder in ("router", "k8s", "loadgen", "workers")
    for path in (ROOT / folder).rglob("README.md")
    if "Which test holds what" in path.read_text("utf-8")
)
DEFINED = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
}


@pytest.mark.parametrize("table", TABLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_table_of_tests_names_tests_that_exist(table):
    text = table.read_text("utf-8").split("Which test holds what", 1)[1].split("\n## ", 1)[0]
    names = re.findall(r"`(test_\w+)`", text)
    assert [name for name in names if name not in DEFINED] == []
    files = re.findall(r"`((?:\w+/)+test_\w+\.py)`", text)
    assert names or files
    inside = [file.removeprefix("tests/") for file in files]
    assert [file for file in inside if not (ROOT / "tests" / file).is_file()] == []
