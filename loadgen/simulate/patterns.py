"""Generators of traffic. The same seed gives the same requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

from loadgen.simulate.traffic import Ask, Dialogue, Ids, Segment, Stage, Traffic
from loadgen.workload.formats import TraceFile, read_trace


@dataclass(frozen=True, slots=True)
class Groups:
    """`groups` prefixes, `prompts` different questions behind each. Rate None: all at once."""

    groups: int
    prompts: int
    prefix_tokens: int
    question_tokens: int
    output_tokens: int
    rate_per_s: float | None
    zipf: float = 0.0


def groups(seed: int, shape: Groups, count: int | None = None) -> Traffic:
    """Every prompt once in random order; with `count`, so many drawn by group weights instead."""
    rng, ids = Random(f"groups {seed}"), Ids()
    prefixes = [(ids.new(), shape.prefix_tokens) for _ in range(shape.groups)]
    order = [prefix for prefix in prefixes for _ in range(shape.prompts)]
    if count is None:
        rng.shuffle(order)
    else:
        weights = [1 / (k + 1) ** shape.zipf for k in range(shape.groups)]
        order = rng.choices(prefixes, weights, k=count)
    now, dialogues = 0.0, []
    for prefix in order:
        question = (ids.new(), shape.question_tokens)
        segments = (prefix, question) if prefix[1] else (question,)
        dialogues.append(Dialogue(now, (Ask(segments, shape.output_tokens),)))
        if shape.rate_per_s is not None:
            now += rng.expovariate(shape.rate_per_s)
    return Traffic([Stage("all", dialogues)], str(shape))


def sibling_bursts(seed: int) -> Traffic:
    """Each 3 s, 24 requests at once whose 4,000-token beginning is new."""
    rng, ids, dialogues = Random(f"bursts {seed}"), Ids(), []
    for burst in range(25):
        prefix = (ids.new(), 4000)
        at = 3.0 * burst + rng.uniform(0.0, 1.0)
        dialogues += [
            Dialogue(at + 0.002 * k, (Ask((prefix, (ids.new(), 200)), 64),)) for k in range(24)
        ]
    return Traffic([Stage("all", dialogues)])


def cyclic(seed: int, prompts: int, tokens: int, count: int, rate_per_s: float) -> Traffic:
    """The same prompts in the same order, again and again."""
    rng, ids = Random(f"cyclic {seed}"), Ids()
    asks = [Ask(((ids.new(), tokens),), 32) for _ in range(prompts)]
    now, dialogues = 0.0, []
    for number in range(count):
        dialogues.append(Dialogue(now, (asks[number % prompts],)))
        now += rng.expovariate(rate_per_s)
    return Traffic([Stage("all", dialogues)])


def flood(seed: int) -> Traffic:
    """One tenant asks for 600 new prompts of 3,000 tokens at once; another asks for one of 500
    four times a second, before and after."""
    rng, ids = Random(f"flood {seed}"), Ids()
    flooding = [
        Dialogue(2.0, (Ask(((ids.new(), 3000),), 64),), tenant="floods") for _ in range(600)
    ]
    now, steady = 0.0, []
    for _ in range(60):
        steady.append(Dialogue(now, (Ask(((ids.new(), 500),), 64),), tenant="steady"))
        now += rng.expovariate(4.0)
    return Traffic([Stage("all", [*flooding, *steady])])


DOCUMENTS: Final = 11
CLIENTS: Final = 4
ROUNDS: Final = 4


def documents(seed: int) -> Traffic:
    """Conversations about documents of 2,600 to 5,200 tokens; answers of 300 to 500 tokens.

    Four clients take a conversation's next turn each, after pauses of 0.5 to 2 s. The first turn
    of each conversation is the warm-up: it is cold under every policy.
    """
    rng, ids = Random(f"documents {seed}"), Ids()
    openings: list[Dialogue] = []
    talks: list[list[Ask]] = []
    names: list[str] = []
    for number in range(DOCUMENTS * ROUNDS):
        segments: list[Segment] = [(ids.new(), rng.randint(2600, 5200))]
        turns = []
        for _ in range(10):
            answer = (ids.new(), rng.randint(300, 500))
            turns.append(Ask(tuple(segments), answer[1], answer[0], rng.uniform(0.5, 2.0)))
            segments += [answer, (ids.new(), 14)]
        names.append(f"c{number}")
        openings.append(Dialogue(0.3 * number, (turns[0],), names[-1]))
        talks.append(turns[1:])
    followups: list[Dialogue] = []
    for client in range(CLIENTS):
        mine = list(range(client, len(talks), CLIENTS))
        after: int | None = None
        while any(talks[k] for k in mine):
            k = rng.choice([k for k in mine if talks[k]])
            ask = talks[k].pop(0)
            followups.append(Dialogue(ask.think_s, (ask,), names[k], after))
            after = len(followups) - 1
    return Traffic([Stage("warm-up", openings, is_measured=False), Stage("turns", followups)])


@dataclass(frozen=True, slots=True)
class Agents:
    """Lengths in tokens. Tools are shared by all, a repository by the sessions that work on it."""

    sessions: int = 60
    session_rate_per_s: float = 0.6
    repositories: int = 8
    turns: int = 12
    tools_tokens: int = 8000
    repository_tokens: int = 12_000
    turn_tokens: int = 3000
    output_tokens: int = 400
    tool_wait_s: float = 4.0


def agents(seed: int, shape: Agents) -> Traffic:
    """Sessions that grow; turns and waits are lognormal, so a few are long."""
    rng, ids = Random(f"agents {seed}"), Ids()
    tools = (ids.new(), shape.tools_tokens)
    repositories = [(ids.new(), shape.repository_tokens) for _ in range(shape.repositories)]
    weights = [1 / (k + 1) for k in range(shape.repositories)]
    now, dialogues = 0.0, []
    for number in range(shape.sessions):
        segments = [tools, rng.choices(repositories, weights)[0]]
        turns = []
        for _ in range(shape.turns):
            segments.append((ids.new(), max(50, round(_lognormal(rng, shape.turn_tokens)))))
            answer = (ids.new(), max(1, round(_lognormal(rng, shape.output_tokens))))
            turns.append(
                Ask(tuple(segments), answer[1], answer[0], _lognormal(rng, shape.tool_wait_s))
            )
            segments.append(answer)
        dialogues.append(Dialogue(now, tuple(turns), f"s{number}"))
        now += rng.expovariate(shape.session_rate_per_s)
    return Traffic([Stage("all", dialogues)], str(shape))


def _lognormal(rng: Random, mean: float, sigma: float = 0.8) -> float:
    return mean * rng.lognormvariate(-sigma * sigma / 2, sigma)


GRID_MS: Final = 3000


def trace(path: Path, seed: int, requests: int | None = None) -> Traffic:
    """A trace in any format that `warmgate-load replay` reads.

    Some of Mooncake's have their times on a grid of 3 s, on which all of a point's requests would
    collide: the seed shifts each within those 3 s. What a row says no hash of is nobody else's.
    """
    rng, found = Random(f"trace {seed}"), read_trace(path)
    is_grid = all(row.timestamp % GRID_MS == 0 for row in found.rows)
    grid_s = GRID_MS / 1e3 if is_grid else 0.0
    dialogues = [
        replace(dialogue, start_s=dialogue.start_s + rng.uniform(0.0, grid_s))
        for dialogue in islice(dialogues_of(found), requests)
    ]
    dialogues.sort(key=lambda dialogue: dialogue.start_s)
    return Traffic([Stage("all", dialogues)], f"{path.name}, {len(dialogues)} rows")


def dialogues_of(found: TraceFile, is_keyed: bool = False) -> Iterator[Dialogue]:
    """A trace's rows, each for itself. `is_keyed`: named by its first block."""
    ids = Ids()
    names: dict[int, int] = {}
    for row in found.rows:
        left, segments = row.input_length, []
        for block in row.hash_ids:
            if left > 0:
                segment_id = names.setdefault(block, 0) or ids.new()
                names[block] = segment_id
                segments.append((segment_id, min(found.block_tokens, left)))
                left -= found.block_tokens
        if left > 0:
            segments.append((ids.new(), left))
        start_s = (row.timestamp - found.rows[0].timestamp) / 1e3
        ask = Ask(tuple(segments), row.output_length)
        yield Dialogue(start_s, (ask,), str(row.hash_ids[:1]) if is_keyed else None)
