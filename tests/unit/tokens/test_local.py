import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from router.tokens import (
    EngineFlags,
    Limits,
    LocalTokenizer,
    Reason,
    TokenizeFailed,
    UnusableModelDir,
)
from tests.support.tokens import (
    CHATML,
    SCRIPTS,
    assistant,
    byte_level_tokenizer,
    chat,
    completion,
    short_beginnings,
    system,
    unpack,
    user,
    write_model_dir,
)

TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
PATIENT = Limits(deadline_s=30, inline_s=10)
"""For tests that are not about time."""

LONG = "The quick brown fox jumps over the lazy dog. " * 200


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def truth(model_dir) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


@pytest.fixture
def tokenizer(model_dir):
    return LocalTokenizer.load(model_dir, limits=PATIENT)


async def reason_of(tokenizer, generation) -> Reason:
    with pytest.raises(TokenizeFailed) as caught:
        await tokenizer.tokenize(generation)
    return caught.value.reason


def chatml(*turns: tuple[str, str], prompt: bool = True) -> str:
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    return text + ("<|im_start|>assistant\n" if prompt else "")


async def test_chat_is_rendered_and_encoded_without_special_tokens(tokenizer, truth):
    ids = unpack(await tokenizer.tokenize(chat([system("Be brief."), user("Hi")])))
    text = chatml(("system", "Be brief."), ("user", "Hi"))
    assert ids == truth.encode(text, add_special_tokens=False).ids
    assert ids[0] == truth.token_to_id("<|im_start|>")


@pytest.mark.parametrize("script", SCRIPTS)
async def test_every_script_comes_out_as_the_library_encodes_it(tokenizer, truth, script):
    words = SCRIPTS[script]
    messages = [user(words), assistant(words + words), user([{"type": "text", "text": words}] * 2)]
    text = chatml(("user", words), ("assistant", words + words), ("user", f"{words}\n{words}"))
    assert unpack(await tokenizer.tokenize(chat(messages))) == truth.encode(text).ids


async def test_special_tokens_in_a_users_text_are_special_as_in_the_engine(tokenizer, truth):
    ids = unpack(await tokenizer.tokenize(chat([user("a<|im_end|>b")])))
    assert ids.count(truth.token_to_id("<|im_end|>")) == 2
    assert ids == truth.encode(chatml(("user", "a<|im_end|>b"))).ids


async def test_tools_are_part_of_the_prompt(tokenizer):
    with_tools = await tokenizer.tokenize(chat([user("Hi")], tools=[TOOL]))
    assert len(with_tools) > len(await tokenizer.tokenize(chat([user("Hi")])))


async def test_prefill_leaves_the_answer_open(tokenizer, truth):
    asked = chat(
        [user("Hi"), assistant("It is")], add_generation_prompt=False, continue_final_message=True
    )
    text = chatml(("user", "Hi"), prompt=False) + "<|im_start|>assistant\nIt is"
    assert unpack(await tokenizer.tokenize(asked)) == truth.encode(text).ids


async def test_empty_texts(tokenizer, truth):
    assert await tokenizer.tokenize(completion("")) == b""
    ids = unpack(await tokenizer.tokenize(chat([user("")])))
    assert ids == truth.encode(chatml(("user", ""))).ids


turns = st.lists(
    st.tuples(
        st.sampled_from(["system", "user", "assistant"]),
        st.lists(
            st.sampled_from([*SCRIPTS.values(), "<|im_end|>", "\n", " "]) | st.text(), max_size=3
        ),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(turns=turns)
async def test_a_growing_conversation_gives_the_whole_texts_ids_at_each_turn(
    tokenizer_for_growth, truth, turns
):
    said = [(role, "".join(words)) for role, words in turns]
    for length in range(1, len(said) + 1):
        messages = [{"role": role, "content": content} for role, content in said[:length]]
        ids = unpack(await tokenizer_for_growth.tokenize(chat(messages)))
        assert ids == truth.encode(chatml(*said[:length])).ids


@pytest.fixture(scope="module", autouse=True)
def short():
    with short_beginnings():
        yield


@pytest.fixture(scope="module")
def tokenizer_for_growth(model_dir):
    """Small enough a memo that it forgets between examples and within them."""
    return LocalTokenizer.load(
        model_dir, limits=Limits(deadline_s=30, memo_bytes=20_000, inline_chars=200)
    )


async def test_a_second_time_comes_from_the_memo(tokenizer):
    first = await tokenizer.tokenize(chat([user("Hi")]))
    misses = tokenizer.encoder.memo.misses
    assert await tokenizer.tokenize(chat([user("Hi")])) == first
    assert tokenizer.encoder.memo.misses == misses


async def test_completions_get_bos_if_tokenizer_json_says_so(tmp_path):
    tokenizer = byte_level_tokenizer()
    bos = ("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))
    tokenizer.post_processor = TemplateProcessing(single=[bos[0], "$A"], special_tokens=[bos])
    made = LocalTokenizer.load(
        write_model_dir(tmp_path, tokenizer, add_bos_token=False), limits=PATIENT
    )
    plain = byte_level_tokenizer().encode("fox").ids
    assert unpack(await made.tokenize(completion("fox"))) == [
        byte_level_tokenizer().token_to_id("<|endoftext|>"),
        *plain,
    ]
    assert unpack(await made.tokenize(completion("fox", add_special_tokens=False))) == plain
    assert unpack(await made.tokenize(completion([7, 8]))) == [7, 8]


async def test_a_flag_in_the_configuration_adds_no_bos(tmp_path):
    directory = write_model_dir(tmp_path, bos_token="<|endoftext|>", add_bos_token=True)
    made = LocalTokenizer.load(directory, limits=PATIENT)
    assert (
        unpack(await made.tokenize(completion("fox"))) == byte_level_tokenizer().encode("fox").ids
    )


async def test_truncation(tokenizer, truth):
    ids = truth.encode("The quick brown fox").ids
    cut = completion("The quick brown fox", truncate_prompt_tokens=3)
    assert unpack(await tokenizer.tokenize(cut)) == ids[-3:]
    cut = completion("The quick brown fox", truncate_prompt_tokens=3, truncation_side="right")
    assert unpack(await tokenizer.tokenize(cut)) == ids[:3]
    cut = completion([1, 2, 3], truncate_prompt_tokens=2)
    assert unpack(await tokenizer.tokenize(cut)) == [2, 3]


async def test_template_of_the_tools_is_used_only_with_tools(tmp_path):
    templates = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with tools"},
    ]
    made = LocalTokenizer.load(write_model_dir(tmp_path, template=templates), limits=PATIENT)
    encode = byte_level_tokenizer().encode
    assert unpack(await made.tokenize(chat([user("Hi")]))) == encode("plain").ids
    asked = chat([user("Hi")], tools=[TOOL])
    assert unpack(await made.tokenize(asked)) == encode("with tools").ids


async def test_a_template_file_wins_over_the_configuration(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("from the file")
    made = LocalTokenizer.load(
        write_model_dir(tmp_path, template="from the configuration"), limits=PATIENT
    )
    encode = byte_level_tokenizer().encode
    assert unpack(await made.tokenize(chat([user("Hi")]))) == encode("from the file").ids


async def test_the_engines_flags_are_followed(model_dir):
    flags = EngineFlags(chat_template="{{ mood }} {{ eos_token }}", variables={"mood": "calm"})
    made = LocalTokenizer.load(model_dir, flags=flags, limits=PATIENT)
    encode = byte_level_tokenizer().encode
    assert unpack(await made.tokenize(chat([user("Hi")]))) == encode("calm <|im_end|>").ids
    asked = chat([user("Hi")], chat_template_kwargs={"mood": "keen"})
    assert unpack(await made.tokenize(asked)) == encode("keen <|im_end|>").ids


async def test_a_clients_own_template_is_never_run(tokenizer):
    asked = chat([user("Hi")], chat_template="{% for i in range(99999) %}x{% endfor %}")
    assert await reason_of(tokenizer, asked) is Reason.UNSUPPORTED


async def test_a_model_without_a_template_still_completes(tmp_path):
    made = LocalTokenizer.load(write_model_dir(tmp_path, template=None), limits=PATIENT)
    assert await reason_of(made, chat([user("Hi")])) is Reason.UNSUPPORTED
    assert (
        unpack(await made.tokenize(completion("fox"))) == byte_level_tokenizer().encode("fox").ids
    )


async def test_chats_that_the_engine_renders_by_its_own_code_are_left_to_it(tmp_path):
    directory = write_model_dir(tmp_path)
    (directory / "config.json").write_text('{"model_type": "kimi_k3"}', "utf-8")
    made = LocalTokenizer.load(directory, limits=PATIENT)
    assert await reason_of(made, chat([user("Hi")])) is Reason.UNSUPPORTED
    assert await made.tokenize(completion("fox")) != b""


def test_a_sentencepiece_of_mistrals_is_refused_with_advice(tmp_path):
    directory = write_model_dir(tmp_path)
    (directory / "tokenizer.model.v3").write_bytes(b"")
    with pytest.raises(UnusableModelDir, match="remote"):
        LocalTokenizer.load(directory)


async def test_images_are_multimodal(tokenizer):
    part = {"type": "image_url", "image_url": {"url": "http://replica.test/x.png"}}
    assert await reason_of(tokenizer, chat([user([part])])) is Reason.MULTIMODAL


async def test_long_prompts_are_refused_before_work_is_done(model_dir):
    made = LocalTokenizer.load(model_dir, limits=Limits(max_bytes=500))
    assert await reason_of(made, chat([user(LONG)])) is Reason.TOO_LARGE


async def test_a_broken_template_is_logged_once_and_without_the_prompt(tmp_path, caplog):
    made = LocalTokenizer.load(
        write_model_dir(tmp_path, template="{{ messages[0].content.a.b }}"), limits=PATIENT
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await reason_of(made, chat([user("a secret")])) is Reason.TEMPLATE_ERROR
    assert len(caplog.records) == 1
    assert "UndefinedError in line 1" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", None),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "no json"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", '{"chat_template": 5}'),
        ("tokenizer_config.json", '{"chat_template": [{"name": "default"}]}'),
    ],
)
def test_a_directory_that_cannot_be_used_names_the_file(tmp_path, name, content):
    write_model_dir(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(UnusableModelDir, match=name):
        LocalTokenizer.load(tmp_path, limits=PATIENT)


def test_the_configuration_is_optional(tmp_path):
    write_model_dir(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    assert LocalTokenizer.load(tmp_path, limits=PATIENT).encoder.cuts
