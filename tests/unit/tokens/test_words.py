"""Text in known words is looked up word by word, and its ids are the library's all the same."""

import string
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC, Lowercase
from tokenizers.pre_tokenizers import ByteLevel, Digits, Metaspace, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as InTurn
from tokenizers.trainers import BpeTrainer

from router.tokens.encoder import Encoder, literal
from router.tokens.memo import Memo
from router.tokens.word_cuts import in_python
from router.tokens.words import Words

ROOM = 1 << 20
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
BYTES = ByteLevel(add_prefix_space=False, use_regex=False)


def isolated(*sources: str) -> PreTokenizer:
    return InTurn([*(Split(Regex(one), "isolated") for one in sources), BYTES])


FAMILIES: dict[str, PreTokenizer] = {
    "gpt-2": ByteLevel(add_prefix_space=False),
    "qwen": isolated(GPT4.replace("{1,3}", "")),
    "llama": isolated(GPT4),
    "phi": InTurn([Split(Regex(GPT4), "removed", invert=True), BYTES]),
    "gpt-oss": isolated(O200K),
    "deepseek": isolated(*DEEPSEEK),
    "smollm": InTurn([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
}
TEXT = "The quick brown fox's 12 dogs don't jump over 3,456 lazy   cats.\n\n\tif (x) { y += 1 }\r\n"
TOKENS = ("<|end|>", "<think>", "</think>")


def trained(cutter: PreTokenizer, special: Sequence[str | AddedToken] = TOKENS) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = cutter
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([TEXT * 4], trainer)
    tokenizer.add_tokens([one for one in special if isinstance(one, AddedToken)])
    tokenizer.add_special_tokens([one for one in special if isinstance(one, str)])
    return tokenizer


def by_library(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def words_of(tokenizer: Tokenizer, max_bytes: int = ROOM) -> Words:
    words = Words.of(tokenizer, max_bytes)
    assert words is not None
    return words


def by_words(words: Words, text: str) -> list[int] | None:
    ids = words.encode(text)
    return None if ids is None else memoryview(ids).cast("I").tolist()


TOKENIZERS = {name: trained(cutter) for name, cutter in FAMILIES.items()}
WORDS = {name: words_of(one) for name, one in TOKENIZERS.items()}
LOWER = string.ascii_lowercase
BITS = [*TEXT.split(" "), " ", "  ", "\n", "\x1c", "'LL", "\r\n", *TOKENS, *"<>|/'_09aZ\t\x0b\x7f"]
texts = st.lists(st.sampled_from(BITS) | st.text(string.printable, max_size=3)).map("".join)


@pytest.mark.parametrize("family", FAMILIES)
@given(text=texts)
def test_words_give_the_librarys_ids_in_every_familys_way_of_cutting(family, text):
    found = by_words(WORDS[family], text)
    assert found == by_library(TOKENIZERS[family], text)


@pytest.mark.parametrize("text", ["naïve", "日本", "a\u2019s", "\x80"])
def test_other_text_than_ascii_is_the_librarys(text):
    assert by_words(WORDS["qwen"], text) is None


def test_a_word_without_end_is_the_librarys():
    assert by_words(WORDS["qwen"], "see " + "a" * 10_000) is None
    assert by_words(WORDS["qwen"], "see " + "a" * 200) is not None


def test_long_texts_are_looked_up_in_several_goes():
    text = "The quick brown fox jumps 12 times. " * 2_000
    assert by_words(WORDS["llama"], text) == by_library(TOKENIZERS["llama"], text)


@pytest.mark.parametrize(
    "cutter",
    [
        None,
        Metaspace(),
        ByteLevel(add_prefix_space=True),
        InTurn([Split(" ", "isolated"), BYTES]),
        InTurn([Split(Regex(r"\s+"), "removed"), BYTES]),
        isolated(r"\p{Han}+|."),
        isolated(r"(a)|\s+"),
        isolated(r"^a+$|[^a]+"),
        isolated(r"a*"),
        isolated(r"[a-z&&[^aeiou]]+|\w+|\W+"),
    ],
)
def test_ways_of_cutting_that_are_not_surely_the_same_here_are_left_to_the_library(cutter):
    tokenizer = Tokenizer(BPE())
    if cutter is not None:
        tokenizer.pre_tokenizer = cutter
    assert Words.of(tokenizer, ROOM) is None


def test_normalizers_that_change_ascii_and_models_that_roll_dice_are_left_to_the_library():
    lowering = trained(FAMILIES["qwen"])
    lowering.normalizer = Lowercase()
    assert Words.of(lowering, ROOM) is None
    composing = trained(FAMILIES["qwen"])
    composing.normalizer = NFC()
    assert Words.of(composing, ROOM) is not None
    random = trained(FAMILIES["qwen"])
    random.model.dropout = 0.5
    assert Words.of(random, ROOM) is None


def test_a_library_that_cuts_in_another_way_than_was_read_is_noticed(monkeypatch):
    monkeypatch.setattr("router.tokens.word_cuts.BYTE_LEVEL", r"\p{L}+|[^\p{L}]+")
    assert Words.of(TOKENIZERS["gpt-2"], ROOM) is None


def test_added_tokens_that_look_at_their_neighbours_are_left_to_the_library():
    greedy = trained(FAMILIES["qwen"], [AddedToken("<sep>", lstrip=True, normalized=False)])
    words = words_of(greedy)
    assert by_words(words, "a  <sep>b") is None
    assert by_words(words, "a sep b") == by_library(greedy, "a sep b")


def test_special_tokens_are_text_where_a_tokenizer_is_told_so():
    told = Tokenizer.from_str(TOKENIZERS["gpt-oss"].to_str())
    told.encode_special_tokens = True
    words = words_of(TOKENIZERS["gpt-oss"])
    text = "say <|end|> and <think>"
    assert by_words(words, text) == by_library(TOKENIZERS["gpt-oss"], text)
    literal_words = words.that_take_special_tokens_for_text()
    assert by_words(literal_words, text) == by_library(told, text)


def test_an_encoder_uses_words_in_whole_pieces_and_in_literal_ones():
    tokenizer = trained(FAMILIES["gpt-oss"])
    encoder = Encoder(tokenizer, Memo(ROOM), words_bytes=ROOM)
    plain = Encoder(Tokenizer.from_str(tokenizer.to_str()), Memo(ROOM))
    encoder.learn_literals()
    plain.learn_literals()
    pieces = ["<|end|>The fox\n", "12 dogs", "<|end|>", literal("<|end|>", "a <|end|> b")]
    assert encoder.encode_pieces(pieces) == plain.encode_pieces(pieces)
    assert encoder.size_bytes > plain.size_bytes


def test_the_memo_stays_within_its_bound_and_words_in_use_stay_in_it():
    bound = 20_000
    words = words_of(TOKENIZERS["qwen"], bound)
    for number in range(2_000):
        text = f"the fox of w{chr(97 + number % 26)}{'x' * (number // 26)}"
        assert by_words(words, text) == by_library(TOKENIZERS["qwen"], text)
        assert words.size_bytes <= bound
    assert words.size_bytes > bound // 4


def test_words_that_do_not_fit_at_all_are_still_encoded():
    words = words_of(TOKENIZERS["qwen"], 10)
    assert by_words(words, TEXT) == by_library(TOKENIZERS["qwen"], TEXT)
    assert words.size_bytes <= 10


def test_texts_of_new_words_are_left_to_the_library_which_teaches_some():
    words = words_of(TOKENIZERS["qwen"], 10_000_000)
    strange = [f"{first}{second}{third}q" for first in LOWER for second in LOWER for third in "xyz"]
    for start in range(0, 1_500, 500):  # a young memo learns all
        text = " ".join(strange[start : start + 500])
        assert by_words(words, text) == by_library(TOKENIZERS["qwen"], text)
    new = " ".join(word[::-1] + "v" for word in strange[:300])
    kept = words.size_bytes
    assert by_words(words, new) is None
    assert kept < words.size_bytes < kept + len(new) * 200 // 64
    mixed = " ".join([*strange[:1_500], *new.split()[-60:]])
    assert by_words(words, mixed) == by_library(TOKENIZERS["qwen"], mixed)
    while by_words(words, new) is None:
        assert words.size_bytes > kept
        kept = words.size_bytes
    assert by_words(words, new) == by_library(TOKENIZERS["qwen"], new)


def test_threads_that_fill_the_memo_together_all_get_the_librarys_ids():
    words = words_of(TOKENIZERS["llama"], 8_000)
    mine = [f"fox {number} dogs {number * 7} cats{number}\n" * 3 for number in range(300)]
    expected = [by_library(TOKENIZERS["llama"], text) for text in mine]
    found: list[list[list[int] | None]] = []

    def run() -> None:
        found.append([by_words(words, text) for text in mine])

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert found == [expected] * 4


@pytest.mark.parametrize(
    ("source", "python"),
    [
        (r"\p{N}{1,3}", "[0123456789\x80]{1,3}"),
        (r"[^\p{Lt}]+", "[^\x80]+"),
        (r"\s+(?!\S)", r"\s+(?!\S)"),
        (r" ?[^\s\P{N}]+", None),
    ],
)
def test_expressions_are_spelt_out_for_ascii(source, python):
    found = in_python(source)
    assert found == python if python is not None else found is not None


@pytest.mark.parametrize(
    "source",
    [r"\h+", r"\p{Han}", r"a{1,3}+", r"(?<n>a)", r"[a[b]]", r"[a&&b]", r"\bx", ".", "^", "["],
)
def test_expressions_that_may_mean_something_else_are_not_translated(source):
    assert in_python(source) is None
