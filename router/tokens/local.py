"""Tokenizing in this process, with the model's own tokenizer and chat template."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from router.openai.fields import is_given
from router.openai.generation import Generation, Kind
from router.tokens.encoder import NO_EDGES, Edges, Encoder, PieceEncoder
from router.tokens.harmony import HarmonyFormat
from router.tokens.limits import DEFAULT_LIMITS, NO_FLAGS, EngineFlags, Limits, MemoShares
from router.tokens.memo import Memo
from router.tokens.mistral import MistralFormat
from router.tokens.model_dir import DEFAULT_TEMPLATE, TOOL_TEMPLATE, read_model_dir, tekken_file
from router.tokens.passages import Part, Passages, text_of
from router.tokens.prompt import (
    ChatPrompt,
    IdsPrompt,
    TextPrompt,
    adds_special_tokens,
    read_prompt,
    read_truncation,
)
from router.tokens.protocol import Reason, TokenizeFailed
from router.tokens.tekken import TekkenEncoder
from router.tokens.template import ChatTemplate, Clock, TemplateFailed, TemplateTooSlow
from router.tokens.told import Told
from router.tokens.whole import WholePrompts
from router.tokens.workers import Workers

log = logging.getLogger(__name__)


MAX_LOGGED: Final = 16

Pieces: TypeAlias = list[str | bytes]
"""A prompt's text as the encoder cuts it; ids in the place of what is remembered whole."""


class ChatFormat(Protocol):
    """Lays out chats by code, as some engines do, instead of a template."""

    told: Told[Any]
    passages: Passages

    def parts(
        self, generation: Generation, prompt: ChatPrompt, *, afresh: bool = False
    ) -> list[Part]:
        """The prompt, in literal pieces that are joined. Any thread may run this.

        What is known of it is not laid out again, but `afresh`, which leaves the memo alone.
        Raises TokenizeFailed.
        """
        ...


class LocalTokenizer:
    """One model's tokenizer. Construct it with `load`."""

    def __init__(
        self,
        encoder: PieceEncoder,
        templates: Mapping[str, ChatTemplate],
        *,
        limits: Limits,
        variables: Mapping[str, Any],
        name: str,
        chats: ChatFormat | None = None,
    ) -> None:
        self.encoder = encoder
        self.name = name
        self.workers = Workers(name, limits.workers)
        self._templates = templates
        self._chats = chats
        self._limits = limits
        self._variables = variables
        self._whole: WholePrompts | None = None
        self._layouts: list[ChatTemplate | ChatFormat] = [*templates.values()]
        if chats is not None:
            self._layouts.append(chats)
        self._is_slow = False
        self._logged: set[str] = set()

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        limits: Limits = DEFAULT_LIMITS,
        flags: EngineFlags = NO_FLAGS,
        clock: Clock = datetime.now,
    ) -> LocalTokenizer:
        """Read a model directory (reads files: call it before serving).

        Raises UnusableModelDir and BadTemplate.
        """
        if (tekken := tekken_file(model_dir)) is not None:
            return cls._of_mistral(tekken, limits, flags)
        found = read_model_dir(model_dir)
        sources = dict(found.templates)
        if flags.chat_template is not None:
            sources = {DEFAULT_TEMPLATE: flags.chat_template}
        if found.is_harmony:
            sources = {}  # never asked
        memo = MemoShares.of(limits.memo_bytes, max(1, len(sources)))
        templates = {
            name: ChatTemplate(
                source, found.special_tokens, clock=clock, parts=flags.parts, memo_bytes=memo.told
            )
            for name, source in sources.items()
        }
        encoder = Encoder(found.tokenizer, Memo(memo.pieces), memo.words)
        tells_time = found.is_harmony or any(one.tells_time for one in templates.values())
        made = cls(
            encoder,
            templates,
            limits=limits,
            variables=flags.variables,
            name=model_dir.name,
            chats=HarmonyFormat(encoder, clock, memo.told) if found.is_harmony else None,
        )
        made._whole = None if tells_time else WholePrompts(memo.whole)
        return made

    @classmethod
    def _of_mistral(cls, file: Path, limits: Limits, flags: EngineFlags) -> LocalTokenizer:
        """Engines pass over --chat-template for these models."""
        memo = MemoShares.of(limits.memo_bytes, 1)
        encoder = TekkenEncoder(file, Memo(memo.pieces), memo.words)
        variables, name = flags.variables, file.parent.name
        chats = MistralFormat(encoder, variables, memo.told)
        made = cls(encoder, {}, limits=limits, variables=variables, name=name, chats=chats)
        made._whole = WholePrompts(memo.whole)
        return made

    @property
    def memo_bytes(self) -> int:
        """Of whole prompts, messages, what the template made of them, pieces and words."""
        kept = (one.told.size_bytes + one.passages.size_bytes for one in self._layouts)
        whole = 0 if self._whole is None else self._whole.memo.size_bytes
        return self.encoder.size_bytes + sum(kept) + whole

    @property
    def memo_hits(self) -> int:
        """Of pieces, of passages and of whole prompts."""
        passages = sum(one.passages.hits for one in self._layouts)
        whole = 0 if self._whole is None else self._whole.memo.hits
        return self.encoder.memo.hits + passages + whole

    def recall(self, generation: Generation) -> bytes | None:
        """See `Tokenizer`."""
        return None if self._whole is None else self._whole.recall(generation)

    async def tokenize(self, generation: Generation) -> bytes:
        until = asyncio.get_running_loop().time() + self._limits.deadline_s
        truncation = read_truncation(generation.fields)
        try:
            found = await self._pieces_in_time(generation, until)
        except TemplateFailed as exc:
            self._log_once(exc.where)
            raise
        if isinstance(found, bytes):
            return found if truncation is None else truncation.slice_ids(found)
        edges = self._edges(generation)
        ids = edges.put_around(await self._encode(found, until), truncation)
        if self._whole is not None:
            self._whole.note(generation, ids)
        return ids

    def pieces_of(self, generation: Generation) -> list[str]:
        """The prompt, rendered without the memo, as the memo cuts it; nothing if it came as ids."""
        as_json = self._chats is not None
        prompt = read_prompt(generation, self._limits.max_bytes, as_json=as_json)
        if isinstance(prompt, IdsPrompt):
            return []
        if isinstance(prompt, TextPrompt):
            return self.encoder.pieces(prompt.text)
        if self._chats is not None:
            parts = self._chats.parts(generation, prompt, afresh=True)
            return self.encoder.pieces("".join(map(text_of, parts)))
        template, prompt = self._template(generation, prompt)
        return self.encoder.pieces(template.render(prompt, self._limits.max_bytes))

    async def _pieces_in_time(self, generation: Generation, until: float) -> Pieces | bytes:
        """Rendered here if that is quick; a template that was not gets a thread and the rest of
        the request's time. Once it is quick again it may come back."""
        if len(generation.body) <= self._limits.inline_bytes and not self._is_slow:
            try:
                return self._pieces(generation, self._limits.inline_s)
            except TemplateTooSlow:
                self._is_slow = True
        left_s = until - asyncio.get_running_loop().time()
        ask = (generation, min(left_s, self._limits.render_s))
        found, took_s = await self.workers.run(self._timed_pieces, ask, until)
        self._is_slow = self._is_slow and took_s > self._limits.inline_s / 4
        return found

    def _timed_pieces(self, ask: tuple[Generation, float]) -> tuple[Pieces | bytes, float]:
        started = time.thread_time()
        found = self._pieces(*ask)
        return found, time.thread_time() - started

    def _pieces(self, generation: Generation, seconds: float) -> Pieces | bytes:
        """The prompt's text in pieces, or its ids if it came as ids. Any thread may run this.

        `seconds`: of computing, for the template.
        """
        prompt = read_prompt(generation, self._limits.max_bytes, as_json=True)
        if isinstance(prompt, IdsPrompt):
            return prompt.ids
        if isinstance(prompt, TextPrompt):
            return list(self.encoder.pieces(prompt.text))
        if self._chats is not None:
            return self.encoder.weld(self._chats.parts(generation, prompt))
        template, prompt = self._template(generation, prompt)
        return self.encoder.weld(template.replay(prompt, self._limits.max_bytes, seconds))

    def _template(
        self, generation: Generation, prompt: ChatPrompt
    ) -> tuple[ChatTemplate, ChatPrompt]:
        """The template for a prompt, and the prompt with the engine's variables."""
        if is_given(generation.fields.chat_template):
            # A client's own program: it could keep a thread busy for ever.
            raise TokenizeFailed(Reason.UNSUPPORTED)
        name = DEFAULT_TEMPLATE if prompt.tools is None else TOOL_TEMPLATE
        template = self._templates.get(name) or self._templates.get(DEFAULT_TEMPLATE)
        if template is None:
            raise TokenizeFailed(Reason.UNSUPPORTED)
        if self._variables:
            prompt = replace(prompt, variables={**self._variables, **prompt.variables})
        return template, prompt

    def _edges(self, generation: Generation) -> Edges:
        written_whole = self._chats is not None and generation.kind is Kind.CHAT
        if written_whole or not adds_special_tokens(generation):
            return NO_EDGES
        if self.encoder.edges is None:
            raise TokenizeFailed(Reason.UNSUPPORTED)
        return self.encoder.edges

    async def _encode(self, pieces: Pieces, until: float) -> bytes:
        texts = [piece for piece in pieces if isinstance(piece, str)]
        if not texts:
            return b"".join(pieces)  # type: ignore[arg-type]
        recalled = zip(texts, self.encoder.recall(texts), strict=True)
        ids = {text: known for text, known in recalled if known is not None}
        missing = {text for text in texts if text not in ids}
        if missing:
            ids |= await self._encode_missing(missing, until)
        return b"".join([ids[piece] if isinstance(piece, str) else piece for piece in pieces])

    async def _encode_missing(self, pieces: set[str], until: float) -> dict[str, bytes]:
        """Ids of pieces that the memo lacks. What comes after the deadline is still remembered."""
        if sum(map(len, pieces)) <= self._limits.inline_chars:
            return self._encode_and_remember(pieces)
        return await self.workers.run(self._encode_and_remember, pieces, until)

    def _encode_and_remember(self, pieces: set[str]) -> dict[str, bytes]:
        fresh = self.encoder.encode_pieces(pieces)
        self.encoder.remember(fresh)
        return fresh

    def _log_once(self, where: str) -> None:
        """Once per kind of failure: a broken template fails on every request."""
        if where not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(where)
            log.warning("chat template of %s fails: %s (logged once)", self.name, where)
