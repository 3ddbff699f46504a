import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from router.tokens.encoder import MAX_PIECES, Encoder
from router.tokens.memo import Memo
from router.tokens.prompt import Truncation
from tests.support.tokens import (
    SCRIPTS,
    SPECIAL,
    byte_level_tokenizer,
    metaspace_tokenizer,
    unpack,
)


def special(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, special=True, normalized=False, **flags)


def plain(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, special=False, **{"normalized": False, **flags})


CHAT_TOKENS = [special(token) for token in SPECIAL]

# Sets of added tokens, each with a trap in it.
ADDED = {
    "chat": CHAT_TOKENS,
    "nested": [special("<a>"), special("<a>b"), special("<a>bc"), special("b")],
    "overlap": [special("<|x|>"), special("|><|"), special("<|")],
    "plain hides special": [special("<end>"), plain("x<"), plain("<end>!")],
    "plain beside special": [*CHAT_TOKENS, plain("<think>"), plain("</think>"), plain("\n\n")],
    "normalized": [*CHAT_TOKENS, plain("Fox", normalized=True)],
    "right strip": [special("<|im_start|>", rstrip=True), special("<|im_end|>")],
    "right strip of space": [special("<s>", rstrip=True), special(" </s>"), special("\n")],
    "left strip": [special("<mask>", lstrip=True), special("<|im_end|>")],
    "single word": [special("<|im_end|>"), plain("fox", single_word=True)],
    "none": [],
}


@functools.cache
def tokenizer(kind: str, added: str) -> Tokenizer:
    make = {"bytes": byte_level_tokenizer, "metaspace": metaspace_tokenizer}[kind]
    made = make(ADDED[added])
    if added == "normalized":
        made.normalizer = normalizers.Lowercase()
    return made


@functools.cache
def encoder(kind: str, added: str) -> Encoder:
    return Encoder(tokenizer(kind, added), Memo(1_000_000), words_bytes=1_000_000)


def encode(encoder: Encoder, text: str) -> list[int]:
    pieces = encoder.pieces(text)
    assert "".join(pieces) == text
    known = encoder.recall(pieces)
    fresh = encoder.encode_pieces(
        piece for piece, ids in zip(pieces, known, strict=True) if not ids
    )
    encoder.remember(fresh)
    return unpack(b"".join(ids or fresh[p] for p, ids in zip(pieces, known, strict=True)))


snippets = st.sampled_from(
    sorted({token.content for tokens in ADDED.values() for token in tokens})
    + list(SCRIPTS.values())
    + [
        " ",
        "  ",
        "\n",
        "\n\n",
        "a",
        "fox",
        "Fox jumps",
        "<",
        ">",
        "|",
        "<|",
        "|>",
        "b",
        "bc",
        "x<e",
    ]
)
texts = st.lists(snippets | st.text(max_size=8), max_size=14).map("".join)


@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
@settings(deadline=None)
@given(text=texts)
def test_pieces_in_a_row_are_the_whole_text(kind, added, text):
    whole = tokenizer(kind, added).encode(text, add_special_tokens=False).ids
    assert encode(encoder(kind, added), text) == whole  # maybe from an earlier text's pieces
    assert encode(encoder(kind, added), text) == whole  # all from the memo


@pytest.mark.parametrize(
    ("added", "cuts"),
    [
        ("chat", True),
        ("nested", True),
        ("plain hides special", True),
        ("right strip", True),
        ("right strip of space", False),
        ("left strip", False),
        ("single word", False),
        ("none", False),
    ],
)
def test_texts_are_cut_only_where_it_is_safe(added, cuts):
    assert encoder("bytes", added).cuts is cuts


def test_plain_added_tokens_make_no_pieces():
    text = "<|im_start|>a\n\n<think>b</think><|im_end|>"
    pieces = encoder("bytes", "plain beside special").pieces(text)
    assert pieces == ["<|im_start|>a\n\n<think>b</think>", "<|im_end|>"]


def test_a_plain_token_that_could_hide_a_special_one_is_cut_at_too():
    pieces = encoder("bytes", "plain hides special").pieces("ax<end><end>!")
    assert pieces == ["a", "x<end>", "<end>!"]


def test_the_next_turn_encodes_only_what_is_new():
    fresh = Encoder(tokenizer("bytes", "chat"), Memo(1_000_000))
    first = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    encode(fresh, first)
    after = fresh.pieces(first + "Hello<|im_end|>\n<|im_start|>user\nMore<|im_end|>\n")
    missing = [piece for piece, ids in zip(after, fresh.recall(after), strict=True) if ids is None]
    assert missing == ["<|im_start|>assistant\nHello", "<|im_start|>user\nMore"]


def test_a_text_of_too_many_added_tokens_stays_whole():
    text = "<|im_end|>" * MAX_PIECES
    assert encoder("bytes", "chat").pieces(text) == [text]
    assert len(encoder("bytes", "chat").pieces(text[:1000])) == 100


def test_empty_text_has_no_ids():
    assert encode(encoder("bytes", "chat"), "") == []
    assert encode(encoder("bytes", "none"), "") == []


def test_truncation_and_padding_of_the_file_are_switched_off():
    made = byte_level_tokenizer()
    made.enable_truncation(4)
    made.enable_padding(length=64)
    text = "The quick brown fox jumps over the lazy dog"
    ids = encode(Encoder(made, Memo(0)), text)
    assert ids == byte_level_tokenizer().encode(text).ids
    assert len(ids) > 4


def with_edges(single: str) -> Tokenizer:
    made = byte_level_tokenizer()
    numbers = [(token, made.token_to_id(token)) for token in SPECIAL]
    made.post_processor = processors.TemplateProcessing(single=single, special_tokens=numbers)
    return made


@pytest.mark.parametrize(
    ("single", "before", "after"),
    [
        ("$A", [], []),
        ("<|im_start|> $A", ["<|im_start|>"], []),
        ("<|im_start|> $A <|im_end|>", ["<|im_start|>"], ["<|im_end|>"]),
        ("$A <|im_end|> <|im_end|>", [], ["<|im_end|>", "<|im_end|>"]),
    ],
)
def test_edges_are_what_the_post_processor_adds(single, before, after):
    made = with_edges(single)
    found = Encoder(made, Memo(0)).edges
    assert found is not None
    ids = {token: made.token_to_id(token) for token in SPECIAL}
    assert unpack(found.before) == [ids[token] for token in before]
    assert unpack(found.after) == [ids[token] for token in after]


def test_edges_that_depend_on_the_text_are_unknown():
    assert Encoder(with_edges("$A <|im_end|> $A"), Memo(0)).edges is None


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("keep", [2, 3, 5, 100])
def test_truncation_without_a_side_keeps_the_edges_as_the_library_does(side, keep):
    made = with_edges("<|im_start|> $A <|im_end|>")
    text = "The quick brown fox"
    edges = Encoder(made, Memo(0)).edges
    assert edges is not None
    plain_ids = encode(Encoder(made, Memo(0)), text)
    body = b"".join(number.to_bytes(4, "little") for number in plain_ids)
    full = made.encode(text).ids
    expected = full[:keep] if side == "right" else full[-keep:]
    assert unpack(edges.put_around(body, Truncation(keep, side))) == expected
    made.enable_truncation(keep, direction="left")
    assert unpack(edges.put_around(body, Truncation(keep))) == made.encode(text).ids


def test_a_word_level_tokenizer_works_too():
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens([special("[SEP]")])
    assert encode(Encoder(made, Memo(1000)), "a [SEP]b c") == [1, 3, 2, 0]
