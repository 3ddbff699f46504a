"""Coding agents: long common instructions, a repository's context, tool results, sub-agents."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

from loadgen.arrival import Arrivals
from loadgen.text import Prose
from loadgen.workload.multi_turn import around
from loadgen.workload.protocol import Message, Session, Turn, salted, zipf_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """Layers of a prompt, in tokens: all agents share `tools_tokens` (instructions and tools'
    schemas), those of a repository `context_tokens` (`groups` of them, drawn by `zipf`).

    A task takes `turns` requests; before each but the first comes a tool's result after `think_s`
    on average. Half way, `sub_agents` work side by side for `sub_turns` each, with the common
    layers and a task of their own; their results are the next message.
    """

    requests: int = 200
    arrivals: Arrivals = field(default_factory=Arrivals)
    groups: int = 4
    zipf: float = 1.0
    tools_tokens: int = 2000
    context_tokens: int = 1000
    user_tokens: int = 100
    result_tokens: int = 300
    output_tokens: int = 64
    turns: int = 8
    sub_agents: int = 2
    sub_turns: int = 3
    think_s: float = 0.5
    spread: float = 0.5


class Agent:
    """Coding agents: common tools, a repository, tool results, sub-agents side by side."""

    name = "agent"

    def __init__(self, options: AgentOptions, prose: Prose, salt: str = "") -> None:
        self._options = options
        self._prose = prose
        self._salt = salt

    @property
    def requests(self) -> int:
        """Whole tasks only: the wish is rounded up."""
        return self._tasks() * self._per_task()

    @property
    def parameters(self) -> Mapping[str, object]:
        return asdict(self._options)

    def sessions(self) -> Iterator[Session]:
        o = self._options
        rng = random.Random(f"agent {self._prose.seed}")
        times = o.arrivals.divided(self._per_task()).times(rng)
        weights = zipf_weights(o.groups, o.zipf)
        for number, start_s in enumerate(itertools.islice(times, self._tasks())):
            group = rng.choices(range(o.groups), weights)[0]
            chance = random.Random(f"task {self._prose.seed} {number}")
            turns = tuple(self._turns(f"a{number}", group, o.turns, chance, is_main=True))
            yield Session(f"a{number}", start_s, turns)

    def _per_task(self) -> int:
        o = self._options
        return o.turns + (o.sub_agents * o.sub_turns if o.turns > 1 else 0)

    def _tasks(self) -> int:
        return math.ceil(self._options.requests / self._per_task())

    def _turns(
        self, name: str, group: int, turns: int, rng: random.Random, is_main: bool
    ) -> Iterator[Turn]:
        o, prose = self._options, self._prose
        tools = prose.passage("tools", o.tools_tokens)
        system = f"{tools} {prose.passage(f'repository {group}', o.context_tokens)}"
        opening = salted((Message("system", system),), self._salt)
        prompt_tokens = o.tools_tokens + o.context_tokens
        for turn in range(turns):
            tokens = around(o.result_tokens, o.spread, rng) if turn else o.user_tokens
            output_tokens = around(o.output_tokens, o.spread, rng)
            text = prose.passage(f"{name} {turn}", tokens)
            is_joined = is_main and turn == max(1, turns // 2)
            yield Turn(
                messages=(*opening, Message("user", text)),
                max_tokens=output_tokens,
                input_tokens=prompt_tokens + tokens,
                think_s=min(rng.expovariate(1.0), 3.0) * o.think_s,
                branches=self._branches(name, group, rng) if is_joined else (),
            )
            opening = ()
            prompt_tokens += tokens + output_tokens

    def _branches(self, name: str, group: int, rng: random.Random) -> tuple[Session, ...]:
        o = self._options
        names = [f"{name}.{n}" for n in range(o.sub_agents)]
        return tuple(
            Session(one, 0.0, tuple(self._turns(one, group, o.sub_turns, rng, is_main=False)))
            for one in names
        )
