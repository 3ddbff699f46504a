"""Passages whose ids are remembered give, among other texts, the ids of the whole text."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from router.tokens.encoder import Encoder
from router.tokens.memo import Memo
from router.tokens.passages import Part, Passage, text_of
from tests.support.tokens import SPECIAL, byte_level_tokenizer, metaspace_tokenizer

WORDS = [
    *SPECIAL,
    "<|im_",
    "start|>",
    "<|",
    "|>",
    "fox",
    " fox",
    "\n",
    " ",
    "",
    "<x>",
    "x><y",
    "<y>",
]
texts = st.lists(st.sampled_from(WORDS), max_size=4).map("".join)
parts = st.lists(st.tuples(st.booleans(), texts), max_size=6)

OVERLAPPING = [AddedToken(text, special=True, normalized=False) for text in ("<x>", "x><y", "<y>")]
ENCODERS = [
    lambda: byte_level_tokenizer(),
    lambda: metaspace_tokenizer(),
    lambda: byte_level_tokenizer(OVERLAPPING),
    lambda: byte_level_tokenizer([AddedToken("<x>", special=True, normalized=False, lstrip=True)]),
]


def ids_of(encoder, pieces):
    texts = [piece for piece in pieces if isinstance(piece, str)]
    fresh = encoder.encode_pieces(texts)
    encoder.remember(fresh)
    return b"".join(fresh[piece] if isinstance(piece, str) else piece for piece in pieces)


@settings(deadline=None)
@given(parts=parts)
def test_any_parts_have_the_ids_of_their_text(parts):
    for make in ENCODERS:
        encoder = Encoder(make(), Memo(1 << 20))
        passages = {text: Passage(text, (), ()) for _, text in parts}
        mixed: list[Part] = [passages[text] if remembered else text for remembered, text in parts]
        whole = "".join(map(text_of, mixed))
        expected = ids_of(encoder, encoder.pieces(whole))
        for _ in range(3):  # the first time nothing is known, then pieces, then passages
            assert ids_of(encoder, encoder.weld(mixed)) == expected


def test_known_passages_are_not_cut_again():
    encoder = Encoder(byte_level_tokenizer(), Memo(1 << 20))
    passages = [Passage(f"<|im_start|>fox {at}<|im_end|>\n", (), ()) for at in range(3)]
    parts: list[Part] = [*passages, "<|im_start|>"]
    for _ in range(2):
        ids_of(encoder, encoder.weld(parts))
    assert [type(piece) for piece in encoder.weld(parts)] == [bytes, bytes, bytes, str]


def test_a_text_that_does_not_begin_with_a_cut_takes_the_passage_before_it_along():
    encoder = Encoder(byte_level_tokenizer(), Memo(1 << 20))
    passages = [Passage(f"<|im_start|>fox {at}", (), ()) for at in range(3)]
    parts: list[Part] = [*passages, "2"]
    for _ in range(2):
        ids_of(encoder, encoder.weld(parts))
    assert encoder.weld(parts)[2:] == ["<|im_start|>fox 22"]
