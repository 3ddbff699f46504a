"""Agents, retrieval, documents, timestamps: what their prompts share, and what not."""

import pickle
from collections import Counter

import pytest

from loadgen.text import Prose
from loadgen.workload.catalogue import KINDS, TRACE, Recipe
from loadgen.workload.protocol import Session, Workload

SYNTHETIC = [name for name in KINDS if name != TRACE]


def make(kind: str, seed: int = 1, salt: str = "", **options) -> Workload:
    return Recipe(kind, KINDS[kind].options(**options))(Prose(seed), salt)


def opening(session: Session) -> list[str]:
    return " ".join(m.content for m in session.turns[0].messages).split()


def common(a: list[str], b: list[str]) -> int:
    pairs = zip(a, b, strict=False)
    return next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("kind", SYNTHETIC)
def test_schedule_is_repeatable_ordered_and_as_long_as_announced(kind):
    first, again = make(kind, requests=60), make(kind, requests=60)
    sessions = list(first.sessions())
    assert sessions == list(again.sessions())
    assert sum(session.requests for session in sessions) == first.requests >= 60
    starts = [session.start_s for session in sessions]
    assert starts == sorted(starts)
    assert sessions != list(make(kind, seed=2, requests=60).sessions())


@pytest.mark.parametrize("kind", SYNTHETIC)
def test_salt_comes_before_everything(kind):
    for session in make(kind, salt="quiet river", requests=30).sessions():
        assert opening(session)[:2] == ["quiet", "river"]


@pytest.mark.parametrize("kind", SYNTHETIC)
def test_first_prompts_have_the_wished_length(kind):
    for session in make(kind, requests=20).sessions():
        assert len(opening(session)) == pytest.approx(session.turns[0].input_tokens, abs=2)


def test_unique_prompts_share_nothing():
    prompts = [opening(s) for s in make("unique", requests=50).sessions()]
    assert len({tuple(prompt[:6]) for prompt in prompts}) == 50


def test_hot_prefix_is_one_for_all():
    first, second, *_ = make("hot-prefix", prefix_tokens=40).sessions()
    assert common(opening(first), opening(second)) == 40


def test_timestamp_ends_what_prompts_share():
    first, second, *_ = make("timestamp-in-front", front_tokens=47).sessions()
    assert common(opening(first), opening(second)) == 47


def test_documents_come_in_another_order_and_popular_ones_more_often():
    sessions = list(make("rag", requests=300, retrieved=3, documents=8).sessions())
    texts = Counter(tuple(opening(s)[256 : 256 + 6]) for s in sessions)
    assert len(texts) == 8
    assert texts.most_common(1)[0][1] > 2 * min(texts.values())
    fixed = list(make("rag", requests=300, retrieved=8, documents=8, order="sorted").sessions())
    assert len({tuple(opening(s)[: 256 + 8 * 512]) for s in fixed}) == 1


def test_questions_of_a_group_come_again():
    workload = make("shared-prefix", requests=200, groups=2, questions=3)
    assert len({tuple(opening(s)) for s in workload.sessions()}) == 6


def test_conversations_share_as_many_system_prompts_as_there_are_groups():
    workload = make("multi-turn", requests=80, groups=2)
    systems = [s.turns[0].messages[0].content for s in workload.sessions()]
    assert len(set(systems)) == 2
    assert systems[0] == systems[2] != systems[1]


def test_agents_share_tools_then_a_repository_then_nothing():
    sessions = list(
        make("agent", requests=140, groups=2, tools_tokens=50, context_tokens=30).sessions()
    )
    shared = {common(opening(a), opening(b)) for a in sessions for b in sessions if a is not b}
    assert shared == {50, 80}


def test_sub_agents_run_half_way_with_the_same_layers():
    (session, *_) = make("agent", turns=6, sub_agents=3, sub_turns=2).sessions()
    branching = [n for n, turn in enumerate(session.turns) if turn.branches]
    assert branching == [3]
    branches = session.turns[3].branches
    assert len(branches) == 3
    assert all(len(branch.turns) == 2 for branch in branches)
    assert {common(opening(session), opening(branch)) for branch in branches} == {3000}


def test_recipe_can_be_pickled_and_makes_the_same():

    recipe = Recipe("agent", KINDS["agent"].options(requests=14))
    copy = pickle.loads(pickle.dumps(recipe))
    assert list(copy(Prose(3), "").sessions()) == list(recipe(Prose(3), "").sessions())


def test_words_of_one_token_make_prompts_of_exact_length():
    prose = Prose(1, 1.0, ("alpha", "beta", "gamma"))
    words = prose.passage("any", 500).split()
    assert len(words) == 500
    assert set(words) == {"alpha", "beta", "gamma"}
