"""Fixtures of the tests that need a real vLLM, and the file that their figures go to."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.vllm import stack
from tests.vllm.stack import Installed, Replica

FIGURES = Path("build/test-vllm.json")


class Note(Protocol):
    """Put one test's figures into the report, in place of its earlier ones."""

    def __call__(self, section: str, figures: Any) -> None: ...


@pytest.fixture(scope="session")
def at() -> Installed:
    found = stack.installed()
    if found is None:
        pytest.skip("no real vLLM here: `make test-vllm` sets it up")
    return found


@pytest.fixture(scope="session")
def pair(at: Installed) -> Iterator[list[Replica]]:
    """Two replicas for all tests; each test that counts hits empties their caches first."""
    with stack.replicas(at) as started:
        yield started


@pytest.fixture(scope="session")
def note() -> Note:
    def write(section: str, figures: Any) -> None:
        FIGURES.parent.mkdir(exist_ok=True)
        known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
        FIGURES.write_text(json.dumps(known | {section: figures}, indent=1) + "\n")

    return write
