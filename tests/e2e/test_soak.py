"""The short form of `make soak-streams`."""

import pytest

from tests.support.soak import Mix, soak


@pytest.mark.timeout(120)
async def test_twenty_seconds_of_deaths_and_departures_lose_no_byte_and_no_memory():
    found = await soak(40, 20.0, Mix(events=20, dies=0.05))
    assert found.wrong == []
    assert found.ends["whole"] > 50
    assert found.ends["error event"] > 0
    assert found.ends["left"] > 0
    # short runs are noisy: `make soak-streams` holds the router to 5 %
    assert found.growth < 0.1
