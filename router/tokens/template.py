"""Chat templates, rendered as `transformers` renders them inside vLLM."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from msgspec import Raw

from router.tokens.content_format import iterates_over_content
from router.tokens.conversation import (
    Message,
    conversation,
    tool_schemas,
    without_developer,
)
from router.tokens.loop_shape import FUNCTIONS, prepare
from router.tokens.passages import Part, Passages
from router.tokens.prompt import ChatPrompt, decode_message
from router.tokens.protocol import Reason, TokenizeFailed
from router.tokens.replay import Loops, Replay
from router.tokens.sandbox import Budget, BudgetSpent, ChatSandbox
from router.tokens.told import Heard, Told
from router.tokens.turns import Loop

Clock = Callable[[], datetime]

CONTINUE_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of a message that the model continues. A template that strips loses its space."""

TEXT_FACTOR: Final = 16
"""A template may make this many times the text that it is allowed to put out."""

_SAME: Final = "sameas"

NOTHING_HEARD: Final[Heard[Message]] = Heard([], [])

FAILURES: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
)
"""What a template's own expressions can raise."""


class BadTemplate(Exception):
    """The template itself does not compile."""


class TemplateFailed(TokenizeFailed):
    """The template broke on a conversation. `where`: type of error and line, without any text."""

    def __init__(self, where: str) -> None:
        super().__init__(Reason.TEMPLATE_ERROR)
        self.where = where


class TemplateTooSlow(TemplateFailed):
    """It was still running when its time was over."""


class ChatTemplate:
    """One compiled template. `parts`: give it content as parts; None: as its syntax suggests.

    `memo_bytes`: bound of what is remembered of messages, and of what its loops made of them.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        clock: Clock = datetime.now,
        parts: bool | None = None,
        memo_bytes: int = 0,
    ) -> None:
        environment = _environment(clock)
        try:
            tree = environment.parse(source)
            loops_over_content = iterates_over_content(tree)
            self._tells_equals_apart = _tells_equals_apart(tree)
            shapes = [] if self._tells_equals_apart else prepare(tree)
            self._template = environment.guarded_template(tree)
        except (jinja2.TemplateSyntaxError, RecursionError) as exc:
            raise BadTemplate(str(exc)) from exc
        self._environment = environment
        self.parts = loops_over_content if parts is None else parts
        self._knows_developer = '"developer"' in source or "'developer'" in source
        self._has_heard_developers = False
        self._reads_content = "content" in source
        self.tells_time = "strftime_now" in source
        self._special_tokens = dict(special_tokens)
        functions = {id(environment.globals[name]) for name in FUNCTIONS}
        self._loops = Loops([Loop(shape) for shape in shapes], functions)
        self.told = Told(memo_bytes // 2, self._read)
        self.passages = Passages(memo_bytes // 2)

    def render(self, prompt: ChatPrompt, max_chars: int, seconds: float = math.inf) -> str:
        """The text that the engine tokenizes, without the memo. Raises TokenizeFailed.

        Longer than `max_chars`: TOO_LARGE. More than so many seconds of computing:
        TemplateTooSlow. Rendering stops there.
        """
        messages = conversation(prompt.read_messages(), parts=self.parts)
        if not self._knows_developer:
            messages = without_developer(messages)
        final = self._open_final(messages, prompt) if prompt.continue_final_message else None
        parts = self._run(prompt, messages, NOTHING_HEARD, max_chars, seconds)
        text = "".join(part for part in parts if isinstance(part, str))
        return text if final is None else _cut_after(text, final)

    def replay(self, prompt: ChatPrompt, max_chars: int, seconds: float = math.inf) -> list[Part]:
        """The same text, in parts: passages are what the memo had of it. Raises as `render`."""
        raw = prompt.messages
        if isinstance(raw, list) or prompt.continue_final_message or self._tells_equals_apart:
            return [self.render(prompt, max_chars, seconds)]
        heard = self.told.hear(raw)
        messages = heard.messages
        if not messages:
            raise TokenizeFailed(Reason.INVALID)
        if self._has_heard_developers:
            messages = without_developer(messages)
        return self._run(prompt, messages, heard, max_chars, seconds)

    def _read(self, raw: Raw) -> Message:
        [message] = conversation([decode_message(raw)], parts=self.parts)
        if message["role"] == "developer" and not self._knows_developer:
            self._has_heard_developers = True
        return message

    def _open_final(self, messages: list[Message], prompt: ChatPrompt) -> str:
        """Tag the end of the last text and return that text."""
        if prompt.add_generation_prompt or not self._reads_content:
            raise TokenizeFailed(Reason.INVALID)
        last = messages[-1]
        content = last["content"]
        if isinstance(content, str):
            last["content"] = content + CONTINUE_TAG
            return content
        for part in reversed(content):
            if "text" in part:
                text: str = part["text"]
                part["text"] = text + CONTINUE_TAG
                return text
        raise TokenizeFailed(Reason.INVALID)

    def _run(
        self,
        prompt: ChatPrompt,
        messages: list[Message],
        heard: Heard[Message],
        max_chars: int,
        seconds: float,
    ) -> list[Part]:
        tools = None if prompt.tools is None else tool_schemas(prompt.tools)
        variables: dict[str, Any] = {
            "documents": None,
            **self._special_tokens,
            **prompt.variables,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": prompt.add_generation_prompt,
        }
        replay = Replay(self._loops, self.passages, heard, tools)
        self._environment.spend(Budget(seconds, TEXT_FACTOR * max_chars), replay)
        parts, room = replay.parts, max_chars
        try:
            for chunk in self._template.generate(variables):
                room -= len(chunk)
                if room < replay.chars:
                    raise TokenizeFailed(Reason.TOO_LARGE)
                parts.append(chunk)
        except _Refused as exc:
            raise TokenizeFailed(Reason.INVALID) from exc
        except BudgetSpent as exc:
            kind = TemplateTooSlow if exc.what == "time" else TemplateFailed
            raise kind(f"no {exc.what} left, {_where(exc)}") from exc
        except FAILURES as exc:
            raise TemplateFailed(_where(exc)) from exc
        if room < replay.chars:
            raise TokenizeFailed(Reason.TOO_LARGE)
        return parts


class _Refused(jinja2.TemplateError):
    """`raise_exception(...)` was called: the template objects to the conversation."""


class _Generation(Extension):
    """`{% generation %}` marks an assistant's text for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _environment(clock: Clock) -> ChatSandbox:
    environment = ChatSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )

    def strftime_now(form: str) -> str:
        return clock().strftime(form)

    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter would escape HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def _cut_after(text: str, final: str) -> str:
    """Cut a rendered text behind the tagged message."""
    tag = CONTINUE_TAG.strip()
    at = text.rfind(tag)
    if at < 0 or final.strip() not in text:
        raise TokenizeFailed(Reason.INVALID)
    head = text[:at]
    return head if text.startswith(CONTINUE_TAG, at) else head.rstrip()


def _where(exc: BaseException) -> str:
    """Type and template line of an error. Its words could quote a prompt."""
    line = None
    trace = exc.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return type(exc).__name__ if line is None else f"{type(exc).__name__} in line {line}"


def _tells_equals_apart(tree: nodes.Template) -> bool:
    """Could it tell two equal messages, which are one object to the memo, from one?"""
    tests = [test for test in tree.find_all(nodes.Test) if test.name == _SAME]
    others = [one for test in tests for one in test.args or []]
    is_named = any(one.value == _SAME for one in tree.find_all(nodes.Const))  # select("sameas", …)
    return is_named or not all(isinstance(one, nodes.Const) for one in others)
