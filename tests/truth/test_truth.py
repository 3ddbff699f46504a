"""The index against engines' real caches under faults; ten minutes of it: `make soak-index`."""

import pytest

from tests.support.truth import trial

SECONDS = 20.0


@pytest.mark.timeout(120)
async def test_what_the_index_calls_exact_is_what_the_engine_holds():
    async with trial(seed=4) as run:
        findings = await run.run(SECONDS)
    assert findings.lies == []
    assert findings.late == []
    assert findings.comparisons > 0
    assert findings.requests > 50
    assert findings.right_share >= 0.95, findings.wrong
