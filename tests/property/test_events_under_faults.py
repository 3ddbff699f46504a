"""A real keeper over an imagined engine, in virtual time: lost, late, doubled and swapped frames,
replays that break off, don't answer or have holes, restarts of engines and of routers, resets.

`python -m tests.truth.imagined SEEDS [FIRST]` runs as many as one likes.
"""

import pytest

from tests.support.imagined_trial import imagine

SEEDS_EACH = 12


@pytest.mark.parametrize("first", range(0, 48, SEEDS_EACH))
def test_who_is_called_exact_holds_what_its_engine_held_at_that_frame(first):
    looks = exact = 0
    for seed in range(first, first + SEEDS_EACH):
        outcome = imagine(seed)
        log = "\n".join(outcome.log)
        assert outcome.lies == [], f"seed {seed}\n{log}"
        assert outcome.late == [], f"seed {seed}\n{log}"
        looks += outcome.looks
        exact += outcome.exact_looks
    assert exact > looks / 10, "hardly ever exact: nothing was proved"
