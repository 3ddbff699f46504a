"""What holds for all tests."""

import pytest
from hypothesis import settings

from router.compiled import NEIGHBOURS, compile_all

# A test's time says more about the machine than about the code.
settings.register_profile("warmgate", deadline=None)
settings.load_profile("warmgate")


def pytest_sessionstart(session: pytest.Session) -> None:
    """So that no test's time goes into compiling the index, the first time ever."""
    compile_all(NEIGHBOURS)
