"""What holds for all tests."""

import pytest
from hypothesis import is_hypothesis_test, settings

from router.compiled import NEIGHBOURS, WORDS, compile_all

PATIENCE_S = 300

# A test's time says more about the machine than about the code.
settings.register_profile("warmgate", deadline=None)
settings.load_profile("warmgate")


def pytest_sessionstart(session: pytest.Session) -> None:
    """So that no test's time goes into compiling the index, the first time ever."""
    compile_all(NEIGHBOURS, WORDS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Many examples take their time on a busy machine. A timeout within one looks like an example
    that fails, and what Hypothesis then says (FlakyStrategyDefinition, FlakyFailure) misleads."""
    for item in items:
        is_patient = isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)
        if is_patient and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PATIENCE_S))
