"""All models' tokenizers put together: local ones that are judged, the engine's behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from router.collectors import TokenizerSample
from router.openai.generation import Generation
from router.tokens.fallback import ByModel, FallbackTokenizer, NullTokenizer
from router.tokens.judge import JudgedTokenizer, JudgeLimits
from router.tokens.limits import NO_FLAGS, EngineFlags, Limits
from router.tokens.local import LocalTokenizer
from router.tokens.protocol import Tokenizer

DEFAULT_NAME: Final = "*"
"""How `/metrics` names the tokenizer of all models that have none of their own."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model's tokenizer is, and what its engine was told."""

    directory: Path
    flags: EngineFlags = field(default_factory=EngineFlags)


@dataclass(frozen=True, slots=True)
class Later:
    """So many `models` may be added; what their engines were told, by name."""

    models: int = 0
    flags: Mapping[str, EngineFlags] = field(default_factory=dict)


NOTHING_LATER: Final = Later()


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes a model's tokenizer of its files, with the engine behind it."""

    engine: Tokenizer
    limits: Limits
    judge: JudgeLimits
    rng: Random
    flags: Mapping[str, EngineFlags]

    def flags_of(self, model: str) -> EngineFlags:
        return self.flags.get(model, NO_FLAGS)

    def judged(self, source: ModelSource) -> JudgedTokenizer:
        """Reads files. UnusableModelDir, BadTemplate, OSError."""
        local = LocalTokenizer.load(source.directory, limits=self.limits, flags=source.flags)
        return JudgedTokenizer(local, self.engine, rng=self.rng, limits=self.judge)

    def with_engine(self, judged: JudgedTokenizer) -> Tokenizer:
        return FallbackTokenizer([judged, self.engine], self.limits.deadline_s)


@dataclass(frozen=True, slots=True)
class Tokenizers:
    """What the planner asks, and the judges behind it by model (None: all other models)."""

    tokenizer: ByModel
    judged: dict[str | None, JudgedTokenizer]
    made: Maker
    _joined: asyncio.Queue[JudgedTokenizer] = field(default_factory=asyncio.Queue)

    def knows(self, model: str) -> bool:
        """Whether the model is tokenized here, by files of its own or by those for all."""
        return model in self.judged or None in self.judged

    async def add(self, directory: Path, models: Iterable[str]) -> None:
        """Tokenize these models here from now on. UnusableModelDir, BadTemplate, OSError."""
        names = list(models)
        flags = {name: self.made.flags_of(name) for name in names}
        for some in {id(one): one for one in flags.values()}.values():
            source = ModelSource(directory, some)
            judged = await asyncio.to_thread(self.made.judged, source)
            for name in names:
                if flags[name] is some:
                    self.judged[name] = judged
                    self.tokenizer.put(name, self.made.with_engine(judged))
            self._joined.put_nowait(judged)

    def first_choice(self, model: str) -> Tokenizer:
        """A model's local tokenizer without what stands behind it, so that its mistakes show."""
        judged = self.judged.get(model, self.judged.get(None))
        return judged.local if judged is not None else self.tokenizer

    def observe_count(self, generation: Generation, ours: int, reported: int) -> None:
        """A reply says how many tokens its prompt had; `ours` is 0 if its ids were not known."""
        judged = self.judged.get(generation.model, self.judged.get(None))
        if judged is not None:
            judged.observe_count(generation, ours, reported)

    async def judge(self) -> None:
        """Compare samples of requests with the engines', for ever."""
        async with asyncio.TaskGroup() as group:
            for judged in self._distinct().values():
                group.create_task(judged.run())
            while not self._joined.empty():  # they are among those
                self._joined.get_nowait()
            while True:
                group.create_task((await self._joined.get()).run())

    def samples(self) -> Iterator[TokenizerSample]:
        """Each local tokenizer as `/metrics` shows it."""
        for name, judged in self._distinct().items():
            local = judged.local
            yield TokenizerSample(
                tokenizer=name,
                is_trusted=judged.is_trusted,
                verdicts={str(kind): count for kind, count in judged.verdicts.items()},
                memo_bytes=local.memo_bytes,
                memo_hits=local.memo_hits,
                memo_misses=local.encoder.memo.misses,
                stuck_threads=local.workers.stuck,
            )

    def _distinct(self) -> dict[str, JudgedTokenizer]:
        """Each once, by the first model that it serves."""
        found: dict[str, JudgedTokenizer] = {}
        for model, judged in self.judged.items():
            if all(judged is not other for other in found.values()):
                found[model or DEFAULT_NAME] = judged
        return found


class ToldEngine(Protocol):
    """Flags of a model's engine, as settings give them; see `EngineFlags`."""

    @property
    def chat_template(self) -> str | None: ...
    @property
    def content_format(self) -> str: ...
    @property
    def chat_template_kwargs(self) -> Mapping[str, Any]: ...


def model_sources(
    directories: Mapping[str, str], default: str | None, engines: Mapping[str, ToldEngine]
) -> dict[str | None, ModelSource]:
    """A source per model. Engines of models that only `default` serves get one of their own.

    OSError: a template's file cannot be read.
    """
    names = {*directories, *(engines if default else ())}
    sources: dict[str | None, ModelSource] = {
        name: ModelSource(Path(directories.get(name, default or "")), _flags(engines.get(name)))
        for name in sorted(names)
    }
    return sources if default is None else {**sources, None: ModelSource(Path(default))}


def engine_flags(engines: Mapping[str, ToldEngine]) -> dict[str, EngineFlags]:
    """OSError: a template's file cannot be read."""
    return {model: _flags(told) for model, told in engines.items()}


def _flags(told: ToldEngine | None) -> EngineFlags:
    if told is None:
        return EngineFlags()
    template = told.chat_template
    if template is not None and "{" not in template:
        template = Path(template).read_text("utf-8")
    parts = {"string": False, "openai": True}.get(told.content_format)
    return EngineFlags(template, parts, told.chat_template_kwargs)


def assemble(
    sources: Mapping[str | None, ModelSource],
    engine: Tokenizer,
    *,
    limits: Limits,
    judge: JudgeLimits,
    rng: Random,
    later: Later = NOTHING_LATER,
) -> Tokenizers:
    """Load every model's files (None: of all other models). `limits.memo_bytes` is for all, and
    for those that are added `later`.

    Raises UnusableModelDir, BadTemplate and OSError.
    """
    distinct: list[tuple[ModelSource, JudgedTokenizer]] = []
    judged: dict[str | None, JudgedTokenizer] = {}
    if isinstance(engine, NullTokenizer):
        # nobody to compare with
        judge = replace(judge, share=0.0, probation=0)
    share = limits.share_memo(len(sources) + later.models + 1)  # the engine's answers too
    maker = Maker(engine, share, judge, rng, later.flags)
    for model, source in sources.items():
        known = next((made for same, made in distinct if same == source), None)
        if known is None:
            known = maker.judged(source)
            distinct.append((source, known))
        judged[model] = known
    both = {model: maker.with_engine(one) for model, one in judged.items()}
    default = both.pop(None, engine)
    by_model = ByModel({model: one for model, one in both.items() if model is not None}, default)
    return Tokenizers(by_model, judged, maker)
