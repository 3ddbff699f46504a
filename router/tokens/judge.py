"""Whether our ids are the engine's: a sample is compared, and who errs is not believed.

The engine's /tokenize says most: the first position that differs, and the tokens there. Every
reply says a little: how many tokens the prompt had. A tokenizer that was wrong once is not asked
again until it was right about enough different prompts in a row; meanwhile the engine is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from random import Random
from typing import Final

from xxhash import xxh3_64_intdigest

from router.openai.generation import Generation
from router.tokens.local import LocalTokenizer
from router.tokens.prompt import is_one_prompt
from router.tokens.protocol import Reason, TokenizeFailed, Tokenizer

log = logging.getLogger(__name__)


class Verdict(StrEnum):
    """What one comparison said."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    """The engine could not be asked, or only one side refused the prompt."""


@dataclass(frozen=True, slots=True)
class JudgeLimits:
    """`share` of requests that are compared, beside the first `probation` ones.

    `cure`: right answers in a row, about different prompts, that make up for a wrong one.
    """

    share: float = 0.01
    probation: int = 3
    cure: int = 8
    max_waiting: int = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two lists of ids part. Tokens as the vocabulary spells them; None: the end."""

    position: int
    ours: str | None
    theirs: str | None


@dataclass(frozen=True, slots=True)
class _Case:
    generation: Generation
    ours: bytes | None = None
    """Our ids, if they were made for the request itself."""
    reported: int | None = None
    """How many prompt tokens the engine counted, if a reply said so."""


DEFAULT_LIMITS: Final = JudgeLimits()


class JudgedTokenizer:
    """A local tokenizer while it is trusted; UNTRUSTED while it is not. Run `run` beside it."""

    def __init__(
        self,
        local: LocalTokenizer,
        engine: Tokenizer,
        *,
        rng: Random,
        limits: JudgeLimits = DEFAULT_LIMITS,
    ) -> None:
        self.local = local
        self.is_trusted = True
        self.verdicts: Counter[Verdict] = Counter()
        self.last_difference: Difference | None = None
        self._engine = engine
        self._rng = rng
        self._limits = limits
        self._cases: asyncio.Queue[_Case] = asyncio.Queue(limits.max_waiting)
        self._agreed: set[int] = set()
        self._engine_counts_otherwise = False

    async def tokenize(self, generation: Generation) -> bytes:
        if not self.is_trusted:
            self._examine(_Case(generation))
            raise TokenizeFailed(Reason.UNTRUSTED)
        ids = await self.local.tokenize(generation)
        self._sample(generation, ids)
        return ids

    def recall(self, generation: Generation) -> bytes | None:
        """See `Tokenizer`. What is remembered is compared as often as what is made anew."""
        ids = self.local.recall(generation) if self.is_trusted else None
        if ids is not None:
            self._sample(generation, ids)
        return ids

    def _sample(self, generation: Generation, ids: bytes) -> None:
        is_new = self.verdicts[Verdict.EQUAL] < self._limits.probation
        if is_new or self._rng.random() < self._limits.share:
            self._examine(_Case(generation, ids))

    def observe_count(self, generation: Generation, ours: int, reported: int) -> None:
        """A reply says how many tokens its prompt had; `ours` is 0 if we had none."""
        if self._engine_counts_otherwise or not is_one_prompt(generation):
            return
        if ours != reported and (ours or not self.is_trusted):
            self._examine(_Case(generation, reported=reported))

    async def run(self) -> None:
        """Compare what waits, one after the other, for ever."""
        while True:
            await self.judge(await self._cases.get())

    async def judge(self, case: _Case) -> None:
        """Compare one prompt and draw the consequences."""
        verdict = await self._verdict(case)
        self.verdicts[verdict] += 1
        if verdict is Verdict.DIFFERENT:
            self._agreed.clear()
            self.is_trusted = False
        elif verdict is Verdict.EQUAL and not self.is_trusted:
            self._agreed.add(xxh3_64_intdigest(case.generation.body))
            if len(self._agreed) >= self._limits.cure:
                self._agreed.clear()
                self.is_trusted = True
                log.info("tokens of %s agree with the engine's again", self.local.name)

    async def _verdict(self, case: _Case) -> Verdict:
        try:
            ours = case.ours
            if ours is None:
                ours = await self.local.tokenize(case.generation)
        except TokenizeFailed:
            return Verdict.UNKNOWN
        try:
            theirs = await self._engine.tokenize(case.generation)
        except TokenizeFailed:
            return self._by_count(len(ours) // 4, case.reported)
        if ours != theirs:
            self._name_difference(memoryview(ours).cast("I"), memoryview(theirs).cast("I"))
            return Verdict.DIFFERENT
        if case.reported not in (None, len(ours) // 4):
            self._engine_counts_otherwise = True
            log.info("the engine counts prompt tokens of %s in another way", self.local.name)
        return Verdict.EQUAL

    def _by_count(self, ours: int, reported: int | None) -> Verdict:
        if reported is None:
            return Verdict.UNKNOWN
        if ours == reported:
            return Verdict.EQUAL
        self._warn(f"have {ours} ids where the engine counts {reported}")
        return Verdict.DIFFERENT

    def _name_difference(self, ours: Sequence[int], theirs: Sequence[int]) -> None:
        pairs = enumerate(zip_longest(ours, theirs))
        at, (a, b) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        spell = self.local.encoder.token_text
        found = Difference(at, spell(a), spell(b))
        self.last_difference = found
        self._warn(
            f"differ from the engine's at position {at}: {found.ours!r} here, {found.theirs!r}"
            f" there; {len(ours)} ids here, {len(theirs)} there"
        )

    def _warn(self, what: str) -> None:
        if self.is_trusted:
            log.warning(
                "tokens of %s %s. The engine is asked until %d prompts agree.",
                self.local.name, what, self._limits.cure,
            )  # fmt: skip

    def _examine(self, case: _Case) -> None:
        if not self._cases.full():
            self._cases.put_nowait(case)
