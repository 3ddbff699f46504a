"""Tokenizing in this process, with the model's own tokenizer and chat template."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from router.openai.fields import is_given
from router.openai.generation import Generation
from router.tokens.encoder import NO_EDGES, Edges, Encoder
from router.tokens.memo import Memo
from router.tokens.model_dir import DEFAULT_TEMPLATE, TOOL_TEMPLATE, read_model_dir
from router.tokens.prompt import (
    ChatPrompt,
    IdsPrompt,
    adds_special_tokens,
    read_prompt,
    read_truncation,
)
from router.tokens.protocol import Reason, TokenizeFailed
from router.tokens.template import ChatTemplate, Clock, TemplateFailed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """What tokenizing may cost.

    `inline_chars`: up to so many new characters are encoded on the event loop (about 1 ms);
    more go to the executor. `max_pending`: prompts in or before the executor.
    """

    deadline_s: float = 1.0
    inline_chars: int = 4096
    max_bytes: int = 4 * 1024 * 1024
    max_pending: int = 64
    memo_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """Flags of the engine that change its prompts; the router must be told the same.

    `chat_template`: source given with --chat-template. `parts`: --chat-template-content-format
    (True openai, False string, None auto). `variables`: --default-chat-template-kwargs.
    """

    chat_template: str | None = None
    parts: bool | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


DEFAULT_LIMITS: Final = Limits()
NO_FLAGS: Final = EngineFlags()
MAX_LOGGED: Final = 16


class LocalTokenizer:
    """One model's tokenizer. Construct it with `load`."""

    def __init__(
        self,
        encoder: Encoder,
        templates: Mapping[str, ChatTemplate],
        *,
        limits: Limits,
        variables: Mapping[str, Any],
        executor: Executor | None,
        name: str,
    ) -> None:
        self.encoder = encoder
        self._name = name
        self._templates = templates
        self._limits = limits
        self._variables = variables
        self._executor = executor
        self._pending = 0
        self._logged: set[str] = set()

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        limits: Limits = DEFAULT_LIMITS,
        flags: EngineFlags = NO_FLAGS,
        executor: Executor | None = None,
        clock: Clock = datetime.now,
    ) -> LocalTokenizer:
        """Read a model directory (reads files: call it before serving).

        `executor`: threads for long texts; None is the event loop's own. Raises UnusableModelDir
        and BadTemplate.
        """
        found = read_model_dir(model_dir)
        sources = dict(found.templates)
        if flags.chat_template is not None:
            sources = {DEFAULT_TEMPLATE: flags.chat_template}
        templates = {
            name: ChatTemplate(source, found.special_tokens, clock=clock, parts=flags.parts)
            for name, source in sources.items()
        }
        return cls(
            Encoder(found.tokenizer, Memo(limits.memo_bytes)),
            templates,
            limits=limits,
            variables=flags.variables,
            executor=executor,
            name=model_dir.name,
        )

    async def tokenize(self, generation: Generation) -> bytes:
        truncation = read_truncation(generation.fields)
        prompt = read_prompt(generation, self._limits.max_bytes)
        if isinstance(prompt, IdsPrompt):
            return prompt.ids if truncation is None else truncation.slice_ids(prompt.ids)
        text = self._render(generation, prompt) if isinstance(prompt, ChatPrompt) else prompt.text
        edges = self._edges(generation)
        return edges.put_around(await self._encode(text), truncation)

    def _edges(self, generation: Generation) -> Edges:
        if not adds_special_tokens(generation):
            return NO_EDGES
        if self.encoder.edges is None:
            raise TokenizeFailed(Reason.UNSUPPORTED)
        return self.encoder.edges

    def _render(self, generation: Generation, prompt: ChatPrompt) -> str:
        if is_given(generation.fields.chat_template):
            # A client's own program: it could keep the event loop busy for ever.
            raise TokenizeFailed(Reason.UNSUPPORTED)
        name = DEFAULT_TEMPLATE if prompt.tools is None else TOOL_TEMPLATE
        template = self._templates.get(name) or self._templates.get(DEFAULT_TEMPLATE)
        if template is None:
            raise TokenizeFailed(Reason.UNSUPPORTED)
        prompt = replace(prompt, variables={**self._variables, **prompt.variables})
        try:
            return template.render(prompt, self._limits.max_bytes)
        except TemplateFailed as exc:
            self._log_once(exc.where)
            raise

    async def _encode(self, text: str) -> bytes:
        pieces = self.encoder.pieces(text)
        ids = self.encoder.recall(pieces)
        missing = {piece for piece, known in zip(pieces, ids, strict=True) if known is None}
        if not missing:
            return b"".join(known for known in ids if known is not None)
        if sum(map(len, missing)) <= self._limits.inline_chars:
            fresh = self.encoder.encode_pieces(missing)
            self.encoder.remember(fresh)
        else:
            fresh = await self._in_executor(missing)
        return b"".join(
            fresh[piece] if known is None else known
            for piece, known in zip(pieces, ids, strict=True)
        )

    async def _in_executor(self, pieces: set[str]) -> dict[str, bytes]:
        """Encode in a thread. What comes after the deadline is still remembered."""
        if self._pending >= self._limits.max_pending:
            raise TokenizeFailed(Reason.BUSY)
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._executor, self.encoder.encode_pieces, pieces)
        self._pending += 1
        job.add_done_callback(self._finish)
        await asyncio.wait((job,), timeout=self._limits.deadline_s)
        if not job.done():
            raise TokenizeFailed(Reason.TIMEOUT)
        return job.result()

    def _finish(self, job: asyncio.Future[dict[str, bytes]]) -> None:
        self._pending -= 1
        if not job.cancelled() and job.exception() is None:
            self.encoder.remember(job.result())

    def _log_once(self, where: str) -> None:
        """Once per kind of failure: a broken template fails on every request."""
        if where not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(where)
            log.warning("chat template of %s fails: %s (logged once)", self._name, where)
