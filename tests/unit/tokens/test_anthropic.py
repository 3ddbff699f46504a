"""Bodies of /v1/messages give the prompt of the chat that vLLM makes of them (recorded)."""

import pytest

from router.tokens import LocalTokenizer, Reason, TokenizeFailed
from router.tokens.prompt import adds_special_tokens, read_prompt
from tests.support.tokens import generation, rows, user, write_model_dir

RECORDED = rows("vllm-0.32-anthropic.jsonl")
DUMP = (
    "{{ tools | tojson }}{{ enable_thinking }}{{ reasoning_effort }}"
    "{% for message in messages %}{{ message | tojson }}{% endfor %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return LocalTokenizer.load(write_model_dir(tmp_path_factory.mktemp("m"), template=DUMP))


@pytest.mark.parametrize("row", RECORDED)
def test_a_body_becomes_the_chat_that_vllm_makes_of_it(tokenizer, row):
    theirs = tokenizer.pieces_of(generation("/v1/chat/completions", **row["chat"]))
    assert tokenizer.pieces_of(generation("/v1/messages", **row["body"])) == theirs


def reason(**body):
    with pytest.raises(TokenizeFailed) as failed:
        read_prompt(generation("/v1/messages", **body), 1 << 20)
    return failed.value.reason


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://replica.test/x.png"}}


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"messages": [user([IMAGE])]}, Reason.MULTIMODAL),
        (
            {"messages": [user([{"type": "tool_result", "content": [IMAGE]}])]},
            Reason.MULTIMODAL,
        ),
        ({"messages": [{"role": "system", "content": "x"}]}, Reason.UNSUPPORTED),
        ({"messages": [user("x")], "thinking": {"type": "disabled"}}, Reason.UNSUPPORTED),
        ({"messages": [user([{"type": "tool_addition"}])]}, Reason.UNSUPPORTED),
        ({"messages": [user("x")], "tools": [{"name": "f"}]}, Reason.UNSUPPORTED),
        ({"messages": ["x"]}, Reason.INVALID),
        ({"messages": [user(5)]}, Reason.INVALID),
        ({"messages": [user([{"type": "text", "text": 5}])]}, Reason.INVALID),
    ],
)
def test_what_has_no_exact_answer_says_why(body, wanted):
    assert reason(**body) is wanted


def test_no_special_tokens_are_added():
    assert not adds_special_tokens(generation("/v1/messages", messages=[user("x")]))
