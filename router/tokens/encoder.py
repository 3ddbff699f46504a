"""Text → ids, exactly as `tokenizers` encodes the whole text, at the price of what is new in it.

A tokenizer cuts a text at its added tokens ("<|im_end|>") before it does anything else, and what
lies between two of them is encoded on its own. So the next turn of a conversation needs only its
new pieces; the others come from a memo. A piece begins with its added token, because some
pre-tokenizers treat the very first text of an input in another way (Metaspace, "first").
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

from tokenizers import Tokenizer

from router.blocks import as_tokens
from router.blocks.hashing import BYTES_PER_TOKEN
from router.tokens.added_tokens import boundary, heads, longest, matches, openers
from router.tokens.memo import Memo
from router.tokens.passages import Part, Passage, text_of
from router.tokens.prompt import Truncation
from router.tokens.words import Words

LITERAL: Final = "\udc80"
"""Marks pieces of literal text. No JSON string decodes to this lone surrogate."""

MAX_PIECES: Final = 4096
"""A text with more added tokens than this is encoded whole: somebody is playing."""


def literal(token: str, text: str) -> str:
    """A piece: one special token ("": none), then text in which nothing is special."""
    return f"{LITERAL}{token}{LITERAL}{text}"


def literal_pieces(text: str) -> list[str]:
    """Literal pieces that were joined, as they were."""
    parts = text.split(LITERAL)
    return list(map(literal, parts[1::2], parts[2::2]))


@dataclass(frozen=True, slots=True)
class Edges:
    """Ids that the post-processor puts before and after a text (BOS, EOS)."""

    before: bytes = b""
    after: bytes = b""

    def put_around(self, ids: bytes, truncation: Truncation | None = None) -> bytes:
        """Add the edges, truncated as the engine does it.

        Without a side, its tokenizer cuts the text's ids and keeps the edges whole; with one, the
        engine cuts the whole prompt.
        """
        if truncation is None:
            return self.before + ids + self.after
        if truncation.side is not None:
            return truncation.slice_ids(self.before + ids + self.after)
        added = (len(self.before) + len(self.after)) // BYTES_PER_TOKEN
        room = Truncation(max(0, truncation.keep - added))
        return self.before + room.slice_ids(ids) + self.after


NO_EDGES: Final = Edges()


class PieceEncoder(ABC):
    """A vocabulary with a memo of pieces. `edges`: None if it does more than put ids around."""

    edges: Edges | None

    def __init__(self, memo: Memo[str]) -> None:
        self.memo = memo

    @property
    def size_bytes(self) -> int:
        """Of all that is remembered."""
        return self.memo.size_bytes

    @property
    @abstractmethod
    def cuts(self) -> bool:
        """Whether texts are cut into pieces; otherwise each is remembered whole."""

    @abstractmethod
    def token_text(self, token: int | None) -> str | None:
        """How the vocabulary spells a token; None for one that it doesn't have."""

    @abstractmethod
    def pieces(self, text: str) -> list[str]:
        """Cut a text so that the pieces' ids in a row are the text's ids."""

    @abstractmethod
    def _encode(self, piece: str) -> bytes: ...

    def opens(self, text: str) -> bool:
        """Whether a cut comes before this text, whatever it is that precedes it."""
        return False

    def weld(self, parts: Sequence[Part]) -> list[str | bytes]:
        """Pieces of the parts' whole text; ids in the place of those that are known.

        A passage's ids are its own if there is a cut before it and a cut behind it.
        """
        if not self.cuts:
            return list(self.pieces("".join(map(text_of, parts))))
        # the last of those that stand by themselves must see what is behind it
        lead = max(0, _standing(parts) - 1)
        return [*[part.ids for part in parts[:lead]], *self._weld_all(parts[lead:])]  # type: ignore[union-attr, list-item]

    def _weld_all(self, parts: Sequence[Part]) -> list[str | bytes]:
        welded: list[str | bytes] = []
        tail: list[str] = []  # from the end: texts up to the next cut that is sure
        for part in reversed(parts):
            if isinstance(part, str):
                if part:
                    tail.append(part)
                continue
            if not part.text and part.ids is None:
                continue
            if tail and self.opens(tail[-1]):
                welded += reversed(self.pieces("".join(reversed(tail))))
                tail.clear()
            if tail or not self._passage_opens(part):
                assert part.text  # a segment, which has none, is followed by a cut
                tail.append(part.text)
            elif part.ids is not None:
                welded.append(part.ids)
            else:
                welded += reversed(self._note_ids(part))
        welded += reversed(self.pieces("".join(reversed(tail))))
        welded.reverse()
        return welded

    def _passage_opens(self, passage: Passage) -> bool:
        if passage.opens is None:
            passage.opens = self.opens(passage.text)
        return passage.opens

    def _note_ids(self, passage: Passage) -> list[str]:
        """A passage's pieces; its ids are noted if they are all remembered."""
        pieces = self.pieces(passage.text)
        found = self.memo.peek_all(pieces)
        if None not in found:
            passage.ids = b"".join(ids for ids in found if ids is not None)
        return pieces

    def recall(self, pieces: Iterable[str]) -> list[bytes | None]:
        """Ids of each piece; None for one that has to be encoded."""
        return self.memo.get_all(pieces)

    def remember(self, fresh: Mapping[str, bytes]) -> None:
        for piece, ids in fresh.items():
            self.memo.put(piece, ids)

    def encode_pieces(self, pieces: Iterable[str]) -> dict[str, bytes]:
        """Encode without the memo; this alone may run in another thread."""
        return {piece: self._encode(piece) for piece in pieces}


class Encoder(PieceEncoder):
    """A tokenizer of the `tokenizers` library. `words_bytes`: for the memo of words."""

    def __init__(self, tokenizer: Tokenizer, memo: Memo[str], words_bytes: int = 0) -> None:
        super().__init__(memo)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._literal: Tokenizer | None = None
        self._literal_words: Words | None = None
        self._boundary = boundary(tokenizer)
        self._openers = openers(tokenizer)
        self._heads = heads(tokenizer)
        self._longest = longest(tokenizer)
        self._words_bytes = words_bytes
        self._words = Words.of(tokenizer, words_bytes) if words_bytes else None
        self.edges = _edges(tokenizer)

    @property
    def size_bytes(self) -> int:
        return self.memo.size_bytes + (0 if self._words is None else self._words.size_bytes)

    @property
    def cuts(self) -> bool:
        return self._boundary is not None

    def token_text(self, token: int | None) -> str | None:
        return None if token is None else self._tokenizer.id_to_token(token)

    def pieces(self, text: str) -> list[str]:
        if text.startswith(LITERAL):
            return literal_pieces(text)
        if self._boundary is None:
            return [text] if text else []
        found = matches(self._boundary, text, self._longest)
        starts = [match.start() for match in islice(found, MAX_PIECES)]
        if len(starts) == MAX_PIECES:
            return [text]
        bounds = [0, *starts, len(text)]
        return [text[a:b] for a, b in pairwise(bounds) if a < b]

    def opens(self, text: str) -> bool:
        if text.startswith(LITERAL):
            return True
        found = None if self._boundary is None else self._boundary.match(text)
        return found is not None and found.group() in self._openers

    def learn_literals(self) -> None:
        """Make ready for `literal` pieces. Doubles the tokenizer's memory: call it only if so."""
        self._literal = Tokenizer.from_str(self._tokenizer.to_str())
        self._literal.encode_special_tokens = True
        if self._words is not None:
            self._literal_words = self._words.that_take_special_tokens_for_text()

    def _encode(self, piece: str) -> bytes:
        if self._literal is None or not piece.startswith(LITERAL):
            return self._encode_text(piece)
        _, token, text = piece.split(LITERAL, 2)
        head = _ids(self._tokenizer, token) if token else b""
        return head + self._encode_literal(self._literal, text) if text else head

    def _encode_text(self, piece: str) -> bytes:
        if self._words is not None:
            head, text = self._behead(piece)
            ids = self._words.encode(text)
            if ids is not None:
                return head + ids
        return _ids(self._tokenizer, piece)

    def _encode_literal(self, library: Tokenizer, text: str) -> bytes:
        ids = None if self._literal_words is None else self._literal_words.encode(text)
        return _ids(library, text) if ids is None else ids

    def _behead(self, piece: str) -> tuple[bytes, str]:
        """The id of the added token that a piece begins with, if it is one, and what follows."""
        found = None if self._boundary is None else self._boundary.match(piece)
        head = None if found is None else self._heads.get(found.group())
        return (b"", piece) if found is None or head is None else (head, piece[found.end() :])


def _standing(parts: Sequence[Part]) -> int:
    """How many passages at the start have a cut before them and ids that are known."""
    for at, part in enumerate(parts):
        if isinstance(part, str) or part.ids is None or not part.opens:
            return at
    return len(parts)


def encode_in_the_calling_thread() -> None:
    """For the whole process: no pool of the library's own. One text at a time gains nothing by it
    and pays a tenth for the hand-over."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _ids(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> bytes:
    # The batch call lets go of the GIL; `encode` holds it for as long as it takes.
    [encoding] = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return as_tokens(encoding.ids).tobytes()


def _edges(tokenizer: Tokenizer) -> Edges | None:
    """Read off what the post-processor adds; None if it does more than put ids around a text."""
    edges: set[Edges] = set()
    for probe in ("a", "b c"):
        plain = array("I", _ids(tokenizer, probe))
        full = array("I", _ids(tokenizer, probe, add_special_tokens=True))
        starts = [i for i in range(len(full)) if full[i : i + len(plain)] == plain]
        if not plain or not starts:
            return None
        before, after = full[: starts[-1]], full[starts[-1] + len(plain) :]
        edges.add(Edges(before.tobytes(), after.tobytes()))
    return edges.pop() if len(edges) == 1 else None
