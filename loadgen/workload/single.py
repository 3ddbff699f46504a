"""Workloads whose requests don't build on each other: one turn per session."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar, Generic, TypeVar

from loadgen.arrival import Arrivals
from loadgen.text import Prose
from loadgen.workload.protocol import Message, Session, Turn, salted, zipf_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleOptions:
    """Lengths in tokens."""

    requests: int = 200
    arrivals: Arrivals = field(default_factory=Arrivals)
    output_tokens: int = 64


OptionsT = TypeVar("OptionsT", bound=SingleOptions)


class Single(Generic[OptionsT]):
    """Who is asked next is drawn, so neighbours differ; subclasses say what a prompt is."""

    name: ClassVar[str] = ""

    def __init__(self, options: OptionsT, prose: Prose, salt: str = "") -> None:
        self.options = options
        self.prose = prose
        self._salt = salt

    @property
    def requests(self) -> int:
        return self.options.requests

    @property
    def parameters(self) -> Mapping[str, object]:
        return asdict(self.options)

    def sessions(self) -> Iterator[Session]:
        rng = random.Random(f"{self.name} {self.prose.seed}")
        times = self.options.arrivals.times(rng)
        for number, start_s in enumerate(itertools.islice(times, self.options.requests)):
            group, system, user, tokens = self.prompt(number, rng)
            parts = (Message("system", system), Message("user", user))
            messages = salted(tuple(part for part in parts if part.content), self._salt)
            turn = Turn(messages, self.options.output_tokens, tokens)
            yield Session(f"{group}-{number}", start_s, (turn,))

    def prompt(self, number: int, rng: random.Random) -> tuple[str, str, str, int]:
        """(group, system prompt or "", user's message, wished tokens) of request `number`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixOptions(SingleOptions):
    """Group k is drawn with weight 1/k**zipf: 0 draws all evenly.

    With `questions` a group has that many of them, which come again; 0: each is new.
    """

    groups: int = 8
    prefix_tokens: int = 1024
    question_tokens: int = 128
    questions: int = 0
    zipf: float = 0.0


class SharedPrefix(Single[SharedPrefixOptions]):
    """Groups of prompts that share a long system prompt, and nothing else."""

    name = "shared-prefix"

    def prompt(self, number: int, rng: random.Random) -> tuple[str, str, str, int]:
        o, prose = self.options, self.prose
        group = rng.choices(range(o.groups), zipf_weights(o.groups, o.zipf))[0]
        system = prose.passage(f"group {group}", o.prefix_tokens)
        own = f"{group} {rng.randrange(o.questions)}" if o.questions else f"{number}"
        user = prose.passage(f"question {own}", o.question_tokens)
        return f"g{group}", system, user, o.prefix_tokens + o.question_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class HotPrefixOptions(SingleOptions):
    """One prefix for all, and a tail of its own for each."""

    prefix_tokens: int = 1024
    question_tokens: int = 1024


class HotPrefix(Single[HotPrefixOptions]):
    """One hot prefix: every replica soon has it, so affinity brings nothing but piles."""

    name = "hot-prefix"

    def prompt(self, number: int, rng: random.Random) -> tuple[str, str, str, int]:
        o, prose = self.options, self.prose
        system = prose.passage("hot", o.prefix_tokens)
        user = prose.passage(f"tail {number}", o.question_tokens)
        return "hot", system, user, o.prefix_tokens + o.question_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueOptions(SingleOptions):
    """`question_tokens` is the whole prompt."""

    question_tokens: int = 1024


class Unique(Single[UniqueOptions]):
    """No two prompts share anything: the control. A hit rate above zero is a mistake somewhere."""

    name = "unique"

    def prompt(self, number: int, rng: random.Random) -> tuple[str, str, str, int]:
        tokens = self.options.question_tokens
        return "u", "", self.prose.passage(f"unique {number}", tokens), tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampOptions(SingleOptions):
    """The same system prompt for all, but for `stamp_tokens` after the first `front_tokens`."""

    prefix_tokens: int = 1847
    front_tokens: int = 47
    stamp_tokens: int = 60
    question_tokens: int = 150


class TimestampInFront(Single[TimestampOptions]):
    """A prompt template with the time near its start: what follows can never be found again."""

    name = "timestamp-in-front"

    def prompt(self, number: int, rng: random.Random) -> tuple[str, str, str, int]:
        o, prose = self.options, self.prose
        left = max(1, o.prefix_tokens - o.front_tokens - o.stamp_tokens)
        parts = (
            prose.passage("front", o.front_tokens),
            prose.passage(f"now {number}", o.stamp_tokens),
            prose.passage("system", left),
        )
        user = prose.passage(f"question {number}", o.question_tokens)
        return "t", " ".join(parts), user, o.prefix_tokens + o.question_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RagOptions(SingleOptions):
    """`retrieved` of `documents` go into each prompt, popular ones more often (`zipf`).

    `order` "shuffled" puts them as a ranker would, by this question's scores; "sorted" always in
    the same order, which is what makes them findable.
    """

    documents: int = 32
    document_tokens: int = 512
    retrieved: int = 4
    order: str = "shuffled"
    prefix_tokens: int = 256
    question_tokens: int = 64
    zipf: float = 1.0


class Rag(Single[RagOptions]):
    """Retrieval: the same documents again and again, in different order."""

    name = "rag"

    def prompt(self, number: int, rng: random.Random) -> tuple[str, str, str, int]:
        o, prose = self.options, self.prose
        found = _draw(o.documents, min(o.retrieved, o.documents), o.zipf, rng)
        if o.order == "sorted":
            found.sort()
        documents = [prose.passage(f"document {one}", o.document_tokens) for one in found]
        user = " ".join((*documents, prose.passage(f"question {number}", o.question_tokens)))
        system = prose.passage("instructions", o.prefix_tokens)
        tokens = o.prefix_tokens + len(found) * o.document_tokens + o.question_tokens
        return f"d{found[0]}", system, user, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LongDocumentOptions(SingleOptions):
    """Each question picks one of `documents`."""

    documents: int = 8
    document_tokens: int = 8192
    question_tokens: int = 64
    zipf: float = 0.0


class LongDocument(Single[LongDocumentOptions]):
    """Questions about a few long documents."""

    name = "long-document"

    def prompt(self, number: int, rng: random.Random) -> tuple[str, str, str, int]:
        o, prose = self.options, self.prose
        one = rng.choices(range(o.documents), zipf_weights(o.documents, o.zipf))[0]
        document = prose.passage(f"document {one}", o.document_tokens)
        user = f"{document} {prose.passage(f'question {number}', o.question_tokens)}"
        return f"d{one}", "", user, o.document_tokens + o.question_tokens


def _draw(count: int, wanted: int, skew: float, rng: random.Random) -> list[int]:
    """`wanted` different numbers below `count`, popular ones first and more often."""
    left, weights = list(range(count)), zipf_weights(count, skew)
    found = []
    for _ in range(wanted):
        at = rng.choices(range(len(left)), weights)[0]
        found.append(left.pop(at))
        weights.pop(at)
    return found
