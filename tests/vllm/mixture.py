"""Talks of every kind that the API knows, taking turns: what a router must predict hits for."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.vllm.stack import BLOCK_SIZE, MODEL_NAME
from tests.vllm.words import sentence

TURNS = 4


@dataclass(slots=True)
class Talk:
    """`kind` names it in the report. `salt`: its prompts share no block with another salt's."""

    kind: str
    content: "Content"
    rng: random.Random
    is_streamed: bool
    salt: str | None = None
    turns: int = TURNS

    def next_body(self) -> dict[str, Any]:
        """The next request of this talk."""
        body = self.content.prompt(self.rng) | {
            "model": MODEL_NAME,
            "max_tokens": self.rng.randint(4, 48),
            "temperature": 0,
            "stream": self.is_streamed,
        }
        if self.is_streamed:
            body["stream_options"] = {"include_usage": True}
        if self.salt:
            body["cache_salt"] = self.salt
        return body


class Content(Protocol):
    """What a talk's prompts are made of."""

    def prompt(self, rng: random.Random) -> dict[str, Any]: ...

    def replied(self, text: str) -> None: ...


@dataclass(slots=True)
class Chat:
    """Messages that grow by a question and its answer. `as_parts`: content as a list of parts."""

    system: str
    as_parts: bool = False
    messages: list[dict[str, Any]] = field(default_factory=list)

    def prompt(self, rng: random.Random) -> dict[str, Any]:
        if not self.messages:
            self._say("system", self.system)
        self._say("user", sentence(rng, rng.randint(5, 60)))
        return {"messages": self.messages}

    def replied(self, text: str) -> None:
        self._say("assistant", text or "ok")

    def _say(self, role: str, text: str) -> None:
        content = [{"type": "text", "text": text}] if self.as_parts else text
        self.messages.append({"role": role, "content": content})


@dataclass(slots=True)
class Text:
    """One text that the model and we write in turns."""

    text: str

    def prompt(self, rng: random.Random) -> dict[str, Any]:
        self.text += f" {sentence(rng, rng.randint(5, 60))}"
        return {"prompt": self.text}

    def replied(self, text: str) -> None:
        self.text += text


@dataclass(slots=True)
class Ids:
    """Token ids, each prompt sent twice: a whole number of blocks must never hit to its end."""

    ids: list[int]
    asked: int = 0

    def prompt(self, rng: random.Random) -> dict[str, Any]:
        if self.asked and self.asked % 2 == 0:
            self.ids = [*self.ids, *(rng.randrange(1000, 20000) for _ in range(2 * BLOCK_SIZE))]
        self.asked += 1
        return {"prompt": self.ids}

    def replied(self, text: str) -> None:
        """Nothing: text is not ids."""


def talks(seed: int) -> list[Talk]:
    """17 talks of four turns each. Some share their beginning, some share it but for the salt."""
    rng = random.Random(seed)

    def own() -> random.Random:
        return random.Random(rng.random())

    return [
        Talk(kind, content, own(), is_streamed=number % 2 == 0, salt=salt)
        for number, (kind, content, salt) in enumerate(_contents(rng))
    ]


def _contents(rng: random.Random) -> Iterator[tuple[str, Content, str | None]]:
    shared, secret = sentence(rng, 200), sentence(rng, 120)
    for _ in range(3):
        yield "chat", Chat(sentence(rng, rng.randint(20, 300))), None
    for _ in range(3):
        yield "chat, shared system prompt", Chat(shared), None
    yield "chat, content in parts", Chat(sentence(rng, 80), as_parts=True), None
    for salt in ("red", "blue"):
        yield "chat, salted", Chat(shared), salt
    for _ in range(3):
        yield "completion", Text(sentence(rng, rng.randint(20, 200))), None
    for salt in ("red", "blue"):
        yield "completion, salted", Text(secret), salt
    for blocks in (1, 3, 5):
        ids = [rng.randrange(1000, 20000) for _ in range(blocks * BLOCK_SIZE)]
        yield "completion of token ids", Ids(ids), None
