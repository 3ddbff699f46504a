"""Schedules: repeatable, of the lengths asked for, sharing what they say they share."""

import itertools
from collections import Counter

import pytest

from loadgen.text import Prose
from loadgen.workload.multi_turn import MultiTurn, MultiTurnOptions
from loadgen.workload.protocol import Workload
from loadgen.workload.single import SharedPrefix, SharedPrefixOptions

SALT = "quiet river"


def multi_turn(salt: str = "", seed: int = 1, **options) -> MultiTurn:
    return MultiTurn(MultiTurnOptions(**options), Prose(seed), salt)


def shared_prefix(salt: str = "", seed: int = 1, **options) -> SharedPrefix:
    return SharedPrefix(SharedPrefixOptions(**options), Prose(seed), salt)


@pytest.mark.parametrize("make", [multi_turn, shared_prefix])
def test_same_seed_gives_the_same_requests_and_another_seed_others(make):
    assert list(make().sessions()) == list(make().sessions())
    assert list(make().sessions()) != list(make(seed=2).sessions())


@pytest.mark.parametrize("make", [multi_turn, shared_prefix])
def test_announced_number_of_requests_is_what_comes(make):
    workload: Workload = make(requests=50)
    turns = sum(len(session.turns) for session in workload.sessions())
    assert turns == workload.requests >= 50


@pytest.mark.parametrize("make", [multi_turn, shared_prefix])
def test_salt_starts_every_prompt_once_and_changes_nothing_else(make):
    plain, salted = list(make().sessions()), list(make(salt=SALT).sessions())
    for before, after in zip(plain, salted, strict=True):
        first, *rest = (message.content for turn in after.turns for message in turn.messages)
        unsalted = [message.content for turn in before.turns for message in turn.messages]
        assert [first.removeprefix(f"{SALT} "), *rest] == unsalted
        assert first.startswith(SALT)


@pytest.mark.parametrize("make", [multi_turn, shared_prefix])
def test_sessions_come_in_order_of_start(make):
    starts = [session.start_s for session in make().sessions()]
    assert starts[0] == 0
    assert starts == sorted(starts)


def test_conversations_open_with_a_system_prompt_and_go_on_with_questions():
    session = next(multi_turn(turns=4).sessions())
    roles = [[message.role for message in turn.messages] for turn in session.turns]
    assert roles == [["system", "user"], ["user"], ["user"], ["user"]]


def test_conversation_lengths_are_near_what_was_asked():
    workload = multi_turn(requests=800, turns=8, system_tokens=1000, user_tokens=100)
    turns = [turn for session in workload.sessions() for turn in session.turns]
    words = [len(turn.messages[-1].content.split()) for turn in turns]
    assert sum(words) / len(words) == pytest.approx(100, rel=0.05)
    assert min(words) >= 80
    assert max(words) <= 120
    opening = turns[0].messages[0].content.split()
    assert len(opening) == 1000


def test_wished_prompt_length_grows_by_answer_and_question():
    turns = next(multi_turn(turns=3, spread=0.0).sessions()).turns
    assert [turn.input_tokens for turn in turns] == [1100, 1264, 1428]


def test_conversations_share_only_the_shared_part():
    systems = [
        session.turns[0].messages[0].content.split()
        for session in multi_turn(shared_tokens=50, requests=80).sessions()
    ]
    assert len({tuple(words[:50]) for words in systems}) == 1
    assert len({tuple(words[50:56]) for words in systems}) == len(systems)


def test_think_times_have_their_mean_and_an_end():
    turns = [turn for s in multi_turn(requests=4000, think_s=2.0).sessions() for turn in s.turns]
    pauses = [turn.think_s for turn in turns]
    # An exponential of mean 1, cut at 3, has the mean 1 - e**-3.
    assert sum(pauses) / len(pauses) == pytest.approx(2.0 * 0.95, rel=0.06)
    assert max(pauses) == 6.0


def test_groups_share_their_prefix_and_no_question():
    by_group: dict[str, set[str]] = {}
    questions = []
    for session in shared_prefix(groups=4).sessions():
        system, question = session.turns[0].messages
        by_group.setdefault(session.id.partition("-")[0], set()).add(system.content)
        questions.append(question.content)
    assert sorted(by_group) == ["g0", "g1", "g2", "g3"]
    assert all(len(prefixes) == 1 for prefixes in by_group.values())
    assert len(set(questions)) == len(questions)


def test_zipf_prefers_the_first_groups():
    sessions = itertools.islice(shared_prefix(groups=4, zipf=1.5, requests=2000).sessions(), 2000)
    counts = Counter(session.id.partition("-")[0] for session in sessions)
    assert counts["g0"] > 2 * counts["g1"] > 2 * counts["g3"]
