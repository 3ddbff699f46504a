"""The short form of `make fuzz`."""

import pytest

from tests.fuzz.http_fuzz import fuzz


@pytest.mark.timeout(180)
async def test_a_thousand_mutated_conversations_find_nothing():
    found = await fuzz(1000, seed=7)
    assert found.bad == []
    assert found.statuses[200] > 50
    assert found.statuses[400] > 100
