"""Text → ids, exactly as `tokenizers` encodes the whole text, at the price of what is new in it.

A tokenizer cuts a text at its added tokens ("<|im_end|>") before it does anything else, and what
lies between two of them is encoded on its own. So the next turn of a conversation needs only its
new pieces; the others come from a memo. A piece begins with its added token, because some
pre-tokenizers treat the very first text of an input in another way (Metaspace, "first").
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

from tokenizers import AddedToken, Tokenizer

from router.blocks import as_tokens
from router.blocks.hashing import BYTES_PER_TOKEN
from router.tokens.memo import Memo
from router.tokens.passages import Part, Passage, text_of
from router.tokens.prompt import Truncation

LITERAL: Final = "\udc80"
"""Marks pieces of literal text. No JSON string decodes to this lone surrogate."""

MAX_PIECES: Final = 4096
"""A text with more added tokens than this is encoded whole: somebody is playing."""


def literal(token: str, text: str) -> str:
    """A piece: one special token ("": none), then text in which nothing is special."""
    return f"{LITERAL}{token}{LITERAL}{text}"


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
        welded: list[str | bytes] = []
        tail: list[str] = []  # from the end: texts up to the next cut that is sure
        for part in reversed(parts):
            if isinstance(part, str):
                if part:
                    tail.append(part)
                continue
            if tail and self.opens(tail[-1]):
                welded += reversed(self.pieces("".join(reversed(tail))))
                tail.clear()
            if tail or not self._passage_opens(part):
                tail += [part.text] if part.text else []
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
    """A tokenizer of the `tokenizers` library."""

    def __init__(self, tokenizer: Tokenizer, memo: Memo[str]) -> None:
        super().__init__(memo)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._literal: Tokenizer | None = None
        self._boundary = _boundary(tokenizer)
        self._openers = _openers(tokenizer)
        self.edges = _edges(tokenizer)

    @property
    def cuts(self) -> bool:
        return self._boundary is not None

    def token_text(self, token: int | None) -> str | None:
        return None if token is None else self._tokenizer.id_to_token(token)

    def pieces(self, text: str) -> list[str]:
        if self._boundary is None:
            return [text] if text else []
        found = self._boundary.finditer(text)
        starts = [match.start() for match in islice(found, MAX_PIECES)]
        if len(starts) == MAX_PIECES:
            return [text]
        bounds = [0, *starts, len(text)]
        return [text[a:b] for a, b in pairwise(bounds) if a < b]

    def opens(self, text: str) -> bool:
        found = None if self._boundary is None else self._boundary.match(text)
        return found is not None and found.group() in self._openers

    def learn_literals(self) -> None:
        """Make ready for `literal` pieces. Doubles the tokenizer's memory: call it only if so."""
        self._literal = Tokenizer.from_str(self._tokenizer.to_str())
        self._literal.encode_special_tokens = True

    def _encode(self, piece: str) -> bytes:
        if self._literal is None or not piece.startswith(LITERAL):
            return _ids(self._tokenizer, piece)
        _, token, text = piece.split(LITERAL, 2)
        head = _ids(self._tokenizer, token) if token else b""
        return head + _ids(self._literal, text) if text else head


def encode_in_the_calling_thread() -> None:
    """For the whole process: no pool of the library's own. One text at a time gains nothing by it
    and pays a tenth for the hand-over."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _ids(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> bytes:
    # The batch call lets go of the GIL; `encode` holds it for as long as it takes.
    [encoding] = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return as_tokens(encoding.ids).tobytes()


def _boundary(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """A pattern that finds added tokens exactly where the tokenizer finds them; None: no cuts.

    Tokens that match on normalized text are looked for later, inside a piece. Those that look at
    their neighbours (`single_word`) or take the space before them (`lstrip`) reach across a cut.
    """
    early = _early_tokens(tokenizer)
    if not early or any(token.lstrip or token.single_word for token in early):
        return None
    cuts = _cut_tokens(early)
    if any(token.rstrip for token in early) and any(text[0].isspace() for text in cuts):
        return None
    return re.compile(_longest_of(sorted(cuts)))


def _early_tokens(tokenizer: Tokenizer) -> list[AddedToken]:
    added = tokenizer.get_added_tokens_decoder().values()
    return [token for token in added if token.content and not token.normalized]


def _cut_tokens(early: list[AddedToken]) -> set[str]:
    """Special tokens; all tokens, if another kind could hide a special one by an overlap."""
    everything = {token.content for token in early}
    special = {token.content for token in early if token.special}
    others = everything - special
    if not special or any(_hides(other, text) for other in others for text in special):
        return everything
    return special


def _hides(other: str, text: str) -> bool:
    """Whether a match of `other` can begin before `text`, or at it and longer, and overlap it."""
    return other.startswith(text) or _reaches(other, text)


def _reaches(other: str, text: str) -> bool:
    """Whether a match of `other` can begin before `text` and end inside it or behind it."""
    tails = (other[at:] for at in range(1, len(other)))
    return any(text.startswith(tail) or tail.startswith(text) for tail in tails)


def _openers(tokenizer: Tokenizer) -> frozenset[str]:
    """Tokens before which there is a cut wherever they stand: none reaches into their beginning."""
    early = _early_tokens(tokenizer)
    texts = [token.content for token in early]
    return frozenset(
        text for text in _cut_tokens(early) if not any(_reaches(other, text) for other in texts)
    )


def _longest_of(words: list[str]) -> str:
    """A regex for the longest of the words that matches, as a trie: there may be hundreds."""
    tails: dict[str, list[str]] = {}
    for word in words:
        if word:
            tails.setdefault(word[0], []).append(word[1:])
    branches = [re.escape(head) + _longest_of(rest) for head, rest in tails.items()]
    if not branches:
        return ""
    if len(branches) == 1 and "" not in words:
        return branches[0]
    return f"(?:{'|'.join(branches)})" + ("?" if "" in words else "")


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
