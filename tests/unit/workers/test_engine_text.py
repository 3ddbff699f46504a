"""Tokenizer, template, generated text, stop strings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.reading import PlainReader, StopReader
from workers.engine.sequence import Finish
from workers.engine.text import Author, read_vocabulary
from workers.engine.tokenizer import MODEL_FOLDER, TemplateFailed, Tokenizer

TOKENIZER = Tokenizer()
VOCABULARY = read_vocabulary(TOKENIZER)
HELLO = {"role": "user", "content": "Hello"}


@given(st.text())
def test_any_text_survives_encoding(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_special_tokens_are_recognised_and_none_is_added():
    tokens = TOKENIZER.encode("<|im_start|>user")
    assert TOKENIZER.strings(tokens)[0] == "<|im_start|>"
    assert TOKENIZER.decode(tokens) == "<|im_start|>user"
    assert TOKENIZER.decode(tokens, keep_special=False) == "user"


def test_the_model_folder_is_small_and_complete():
    names = {path.name for path in MODEL_FOLDER.iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "train.py"} <= names
    assert (MODEL_FOLDER / "tokenizer.json").stat().st_size < 600_000


def test_a_chat_is_rendered_as_chatml():
    assert TOKENIZER.render([HELLO]) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    own = [{"role": "system", "content": "Be brief."}, HELLO]
    assert TOKENIZER.render(own, options={"add_generation_prompt": False}) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    )


def test_a_turn_extends_the_prompt_of_the_turn_before():
    before = TOKENIZER.render([HELLO])
    turns = [HELLO, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Why?"}]
    assert TOKENIZER.render(turns).startswith(before + "Yes.<|im_end|>\n")


def test_tools_and_calls_are_part_of_the_prompt():
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "look_up", "arguments": '{"q": "é"}'},
    }
    text = TOKENIZER.render(
        [
            {"role": "system", "content": "Be brief."},
            HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
        ],
        [tool],
    )
    assert text.count("Be brief.") == 1
    assert '{"type": "function", "function": {"name": "look_up", "description": null' in text
    assert '<tool_call>\n{"arguments": {"q": "é"}, "name": "look_up"}\n</tool_call>' in text
    assert "<|im_start|>tool\n42<|im_end|>" in text


def test_parts_of_a_message_are_joined_and_only_text_is_read():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "one\ntwo<|im_end|>" in TOKENIZER.render([{"role": "user", "content": parts}])
    picture = [{"type": "image_url", "image_url": {"url": "data:"}}]
    with pytest.raises(TemplateFailed, match="text only"):
        TOKENIZER.render([{"role": "user", "content": picture}])
    with pytest.raises(TemplateFailed, match="must be an object"):
        TOKENIZER.render([{"role": "user", "content": [5]}])


@pytest.mark.parametrize("messages", [[], [{"role": "wizard", "content": "x"}], [{"content": "x"}]])
def test_messages_that_the_template_refuses_are_the_clients_fault(messages):
    with pytest.raises(TemplateFailed):
        TOKENIZER.render(messages)


def answer(prompt, count, *, seed=0, lengths=(0, 0), continues=False):
    story = Author(VOCABULARY, lengths).begin(prompt, seed, continues=continues)
    return [story.next_token() for _ in range(count)]


def test_the_same_prompt_gets_the_same_answer_and_another_one_another():
    one, two = TOKENIZER.encode("one"), TOKENIZER.encode("two")
    assert answer(one, 40) == answer(one, 40)
    assert answer(one, 40) != answer(two, 40)
    assert answer(one, 40) != answer(one, 40, seed=1)


def test_every_token_is_visible_text():
    tokens = answer(TOKENIZER.encode("x"), 500)
    assert all(VOCABULARY.pieces[token].strip() for token in tokens)


@pytest.mark.parametrize("continues", [True, False])
def test_an_answer_sent_back_in_the_next_turn_is_the_same_tokens(continues):
    for number in range(30):
        prompt = TOKENIZER.encode(TOKENIZER.render([{"role": "user", "content": str(number)}]))
        tokens = answer(prompt, 60, continues=continues)
        text = "".join(VOCABULARY.pieces[token] for token in tokens)
        before = "<|im_start|>assistant\n"
        whole = TOKENIZER.encode(before + text + "<|im_end|>\n")
        start = len(TOKENIZER.encode(before))
        assert list(whole[start : start + 60]) == tokens


def test_answers_end_by_themselves_within_their_range():
    lengths = set()
    for number in range(50):
        tokens = answer(TOKENIZER.encode(str(number)), 40, lengths=(3, 30))
        lengths.add(tokens.index(VOCABULARY.end))
    assert min(lengths) >= 3
    assert max(lengths) <= 30
    assert len(lengths) > 10


def test_no_answer_ends_before_its_minimum():
    prompt = TOKENIZER.encode("x")
    for at_least, ends in ((20, True), (None, False)):
        story = Author(VOCABULARY, (3, 3)).begin(prompt, 0, at_least=at_least)
        tokens = [story.next_token() for _ in range(40)]
        assert VOCABULARY.end not in tokens[:20]
        assert (VOCABULARY.end in tokens) is ends


def test_escaped_pieces_are_what_json_needs():
    assert all(b'"' not in piece and b"\n" not in piece for piece in VOCABULARY.json_pieces)


PIECES = ["Hel", "lo", " wor", "ld", "!"]


def read(stops, *, keep_stop=False, min_tokens=0, tokens=(0, 1, 2, 3, 4)):
    reader = StopReader(PIECES, stops, keep_stop=keep_stop, min_tokens=min_tokens)
    texts, finish = [], None
    for number, token in enumerate(tokens):
        last = Finish.LENGTH if number == len(tokens) - 1 else None
        text, finish = reader.read(token, last)
        texts.append(text)
        if finish:
            break
    return texts, finish, reader.stopped_by


def test_a_stop_string_across_tokens_ends_the_answer_before_it():
    texts, finish, stopped_by = read(["o w"])
    assert "".join(texts) == "Hell"
    assert (finish, stopped_by) == (Finish.STOP, "o w")


def test_nothing_of_a_possible_stop_string_is_sent_early():
    texts, finish, stopped_by = read(["lo worst"])
    assert texts[:2] == ["", ""]
    assert "".join(texts) == "Hello world!"
    assert (finish, stopped_by) == (Finish.LENGTH, None)


def test_a_stop_string_can_be_kept():
    texts, finish, _ = read(["o w"], keep_stop=True)
    assert "".join(texts) == "Hello w"
    assert finish is Finish.STOP


def test_no_stop_string_counts_before_the_minimum():
    texts, _, stopped_by = read(["lo", "!"], min_tokens=2)
    assert "".join(texts) == "Hello world"
    assert stopped_by == "!"


@pytest.mark.parametrize(("keep_stop", "text"), [(False, ""), (True, "lo")])
def test_the_text_of_a_stop_token_is_kept_only_on_request(keep_stop, text):
    plain = PlainReader(PIECES, keep_stop=keep_stop)
    assert plain.read(1, Finish.STOP) == (text, Finish.STOP)
    reader = StopReader(PIECES, ["never"], keep_stop=keep_stop, min_tokens=0)
    assert reader.read(1, Finish.STOP) == (text, Finish.STOP)


def test_without_stop_strings_text_passes_as_it_comes():
    assert PlainReader(PIECES).read(1, None) == ("lo", None)
