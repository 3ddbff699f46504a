from datetime import datetime

import pytest

from router.tokens import BadTemplate, ChatTemplate, Reason, TokenizeFailed
from router.tokens.prompt import ChatPrompt
from router.tokens.template import TemplateFailed
from tests.support.tokens import CHATML, assistant, rows, system, user

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def render(source: str, messages=None, *, max_chars: int = 10_000, clock=None, **prompt) -> str:
    template = ChatTemplate(source, SPECIAL, clock=clock or datetime.now)
    asked = ChatPrompt(
        messages=messages or [user("Hi")],
        tools=prompt.pop("tools", None),
        variables=prompt.pop("variables", {}),
        **prompt,
    )
    return template.render(asked, max_chars)


def reason_of(source: str, messages=None, **prompt) -> Reason:
    with pytest.raises(TokenizeFailed) as caught:
        render(source, messages, **prompt)
    return caught.value.reason


def test_chatml():
    text = render(CHATML, [system("Be brief."), user("Hi")])
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(CHATML, [user("")], add_generation_prompt=False) == (
        "<|im_start|>user\n<|im_end|>\n"
    )


def test_special_tokens_can_be_overridden_by_variables():
    assert render("{{ bos_token }}{{ eos_token }}") == "<s></s>"
    assert render("{{ bos_token }}", variables={"bos_token": "X"}) == "X"


def test_blocks_are_trimmed_as_chat_templates_expect():
    assert render("  {% if true %}\na\n  {% endif %}\nb\n") == "a\nb"


def test_tojson_keeps_letters_and_does_not_escape_html():
    tools = [{"type": "function", "function": {"name": "é", "description": "<a> & 'b'"}}]
    assert render("{{ tools | tojson }}", tools=tools) == (
        '[{"type": "function", "function": {"name": "é", '
        '"description": "<a> & \'b\'", "parameters": null}}]'
    )
    assert render("{{ {'b': 1, 'a': [1]} | tojson(indent=1, sort_keys=true) }}") == (
        '{\n "a": [\n  1\n ],\n "b": 1\n}'
    )
    assert render("{{ {'b': 1} | tojson(separators=(',', ':')) }}") == '{"b":1}'
    assert render("{{ 'é' | tojson(ensure_ascii=true) }}") == '"\\u00e9"'


def test_tools_and_documents_are_none_when_they_are_not_given():
    assert render("{{ tools is none }} {{ documents is none }}") == "True True"
    assert render("{{ documents[0].title }}", variables={"documents": [{"title": "t"}]}) == "t"


def test_loop_controls_and_generation_blocks():
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    )
    assert render(source, [system("s"), user("a"), user("b")]) == "a"


def test_the_date_is_the_clocks():
    def clock() -> datetime:
        return datetime(2026, 3, 9)

    assert render("{{ strftime_now('%d %b %Y') }}", clock=clock) == "09 Mar 2026"


def test_a_refusal_of_the_template_is_the_clients_mistake():
    assert reason_of("{{ raise_exception('roles must alternate') }}") is Reason.INVALID


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.nothing.more }}",
        "{{ messages[9].content.x }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ undefined_function() }}",
        "{{ messages[0].content.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ range(10000000) | list }}",
        "{{ messages | tojson(indent='x', sort_keys=1 / 0) }}",
    ],
)
def test_what_breaks_in_a_template_is_a_template_error(source):
    assert reason_of(source) is Reason.TEMPLATE_ERROR


def test_a_broken_template_names_its_line_and_quotes_nothing():
    with pytest.raises(TemplateFailed) as caught:
        render("line one\n{{ messages[0].content.secret.x }}", [user("private")])
    assert caught.value.where == "UndefinedError in line 2"


@pytest.mark.parametrize("source", ["{% for %}", "{{ a", "{% nothing %}", "{% generation %}"])
def test_a_template_that_does_not_compile_is_told_at_once(source):
    with pytest.raises(BadTemplate):
        ChatTemplate(source, {})


def test_output_is_bounded_while_it_is_made():
    source = "{% for i in range(1000) %}{% for j in range(1000) %}{{ i }}.{% endfor %}{% endfor %}"
    assert reason_of(source, max_chars=5_000) is Reason.TOO_LARGE
    assert len(render("{{ 'x' * 50 }}", max_chars=50)) == 50


def test_a_prefilled_answer_stays_open():
    text = render(
        CHATML,
        [user("Hi"), assistant("The answer is")],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert text.endswith("<|im_start|>assistant\nThe answer is")


def test_a_prefilled_answer_keeps_its_spaces_only_if_the_template_does():
    prompt = {"add_generation_prompt": False, "continue_final_message": True}
    messages = [user("Hi"), assistant("It is  ")]
    assert render(CHATML, messages, **prompt).endswith("\nIt is  ")
    stripping = CHATML.replace("message['content']", "message['content'] | trim")
    assert render(stripping, messages, **prompt).endswith("\nIt is")


def test_the_last_text_part_is_the_one_that_stays_open():
    source = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    prompt = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(source, [assistant(parts)], **prompt) == "[a][b"


@pytest.mark.parametrize(
    ("source", "messages", "add_generation_prompt"),
    [
        (CHATML, [assistant("x")], True),
        ("{{ messages[0].role }}", [assistant("x")], False),
        ("{{ messages[0].content[:1] }}", [assistant("xyz")], False),
        ("{% for p in messages[0].content %}{{ p.text }}{% endfor %}", [assistant("")], False),
        (
            "{% for m in messages %}{% for p in m.content %}a{% endfor %}{% endfor %}",
            [user([])],
            False,
        ),
    ],
)
def test_a_prefill_that_the_engine_refuses_is_invalid(source, messages, add_generation_prompt):
    reason = reason_of(
        source,
        messages,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=True,
    )
    assert reason is Reason.INVALID


def test_a_template_that_knows_developers_gets_them():
    source = "{% for m in messages %}{{ m.role }} {% endfor %}"
    messages = [{"role": "developer", "content": "d"}, user("Hi")]
    assert render(source, messages) == "system user "
    assert render(source + "{# 'developer' #}", messages) == "developer user "


def test_rendering_leaves_no_trace_for_the_next_request():
    template = ChatTemplate("{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", {})
    prompt = ChatPrompt([user("Hi")], None, {})
    assert [template.render(prompt, 10) for _ in range(3)] == ["1", "1", "1"]


@pytest.mark.parametrize("row", rows("vllm-0.32-content-format.jsonl"))
def test_content_format_is_the_one_that_the_engine_detects(row):
    template = ChatTemplate(row["template"], {})
    assert template.parts is (row["format"] == "openai")
    assert ChatTemplate(row["template"], {}, parts=True).parts
