"""A replayed template says what it would have said, and runs only what is new."""

import json

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Raw

from router.tokens import Reason, TokenizeFailed
from router.tokens.content_format import iterates_over_content
from router.tokens.conversation import conversation, tool_schemas
from router.tokens.loop_shape import prepare
from router.tokens.passages import Passage, text_of
from router.tokens.prompt import ChatPrompt
from router.tokens.template import FAILURES, ChatTemplate
from tests.support.tokens import CHATML
from tests.tokens_reference.models import EMBEDDED, TEMPLATES

MEMO = 1 << 22
LONGEST = 1 << 20
START = (
    "{%- set ns = namespace(n=0, flag=false, last=messages|length - 2, role='', odd=kwarg) %}"
    "{%- set said = messages %}{%- set other = namespace(n=5) %}"
)
LOOPS = [
    "messages",
    "said",
    "messages[1:]",
    "messages[::-1]",
    "messages | selectattr('role', 'ne', 'system') | list",
    "messages | rejectattr('role', 'eq', 'tool')",
    "tools or []",
]
BODIES = [
    "{{ message.role }}:{{ message.content }};",
    "{{ loop.index0 }}",
    "{{ loop.index % 2 == 0 }}",
    "{{ loop.length }}",
    "{{ loop.revindex0 > 2 }}",
    "{% if loop.first %}first{% elif loop.last %}last{% else %}inside{% endif %}",
    "{{ loop.previtem.role }}",
    "{{ loop.nextitem.content if not loop.last else '.' }}",
    "{% if loop.first or messages[loop.index0 - 1].role != message.role %}turn{% endif %}",
    "{{ messages[loop.index0 - 1].content }}",
    "{{ messages[loop.index0 + 1].role }}",
    "{{ said[loop.index0 - 2].role }}",
    "{{ messages[0].content }}",
    "{{ messages[-1].role }}",
    "{{ messages | length }}",
    "{{ messages[loop.index0:] | length }}",
    "{% if loop.index0 > ns.last %}late{% endif %}",
    "{% if loop.index0 >= ns.last and not loop.last %}late{% endif %}",
    "{% set ns.n = ns.n + 1 %}{{ ns.n }}",
    "{% set ns.n = ns.n + other.n %}",
    "{% set ns.flag = not ns.flag %}",
    "{% if ns.flag %}flag{% endif %}",
    "{% set ns.role = message.role %}{{ ns.role }}",
    "{% set ns.odd = message %}{{ ns.odd.role }}",
    "{% set ns.fresh = loop.index %}",
    "{{ ns.fresh }}{{ ns.odd }}",
    "{{ x }}{% set x = message.content %}{{ x }}",
    "{% if message.role == 'user' %}{% set x = 'mine' %}{% endif %}{{ x }}",
    "{% for call in message.tool_calls or [] %}{{ loop.index }}{{ call.function }}{% endfor %}",
    "{% for letter in message.content %}{{ letter }}{{ ns.n }}{% endfor %}",
    "{% set ns = namespace(n=9) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}",
    "{% set other = ns %}{% set other.n = 3 %}{{ ns.n }}",
    "{% if tools %}{{ tools | tojson }}{% endif %}",
    "{{ kwarg }}",
    "{{ kwarg + loop.index0 }}",
    "{{ kwarg is sameas true }}",
    "{{ message is sameas messages[0] }}",
    "{{ messages | select('sameas', message) | list | length }}",
    "{{ loop.cycle('a', 'b') }}",
    "{% if loop.changed(message.role) %}changed{% endif %}",
    "{% if message.role == 'tool' %}{% break %}{% endif %}",
    "{% if message.role == 'tool' %}{% continue %}{% endif %}",
    "{% if message.content == 'bad' %}{{ raise_exception('no') }}{% endif %}",
    "{% set block %}<{{ message.content }}>{% endset %}{{ block }}",
    "{{ message.content | trim | upper ~ loop.first }}",
    "{{ message | tojson }}",
]
END = "|{{ ns.n }}{{ ns.flag }}{{ ns.role }}{{ ns.fresh }}{{ x }}"

bodies = st.lists(st.sampled_from(BODIES), min_size=1, max_size=5).map("".join)
loops = st.builds(
    lambda items, body: f"{{%- for message in {items} %}}{body}{{%- endfor %}}",
    st.sampled_from(LOOPS),
    bodies,
)
templates = st.lists(loops, min_size=1, max_size=2).map(lambda found: START + "".join(found) + END)
messages = st.builds(
    lambda role, content, calls: (
        {"role": role, "content": content}
        | ({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]} if calls else {})
    ),
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.sampled_from(["", "a", "b", "bad", " long "]),
    st.booleans(),
)
kwargs = st.sampled_from([None, True, 1, 1.0, "1", "", [], [1], {"a": 1}, -1, 0, False])
tools = st.sampled_from([None, [{"type": "function", "function": {"name": "f"}}]])


def prompt(said, variables=None, tools=None):
    return ChatPrompt(Raw(json.dumps(said).encode()), tools, variables or {})


def outcome(render, asked):
    try:
        found = render(asked, LONGEST)
    except TokenizeFailed as exc:
        return exc.reason
    return found if isinstance(found, str) else "".join(map(text_of, found))


class Reference:
    """What Jinja's own sandbox makes of a template; None if it fails."""

    def __init__(self, source):
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        environment.globals["raise_exception"] = lambda text: 1 / 0
        self._parts = iterates_over_content(environment.parse(source))
        self._template = environment.from_string(source)

    def render(self, said, variables=None, tools=None):
        try:
            return self._template.render(
                messages=conversation(said, parts=self._parts),
                tools=None if tools is None else tool_schemas(tools),
                documents=None,
                **(variables or {}),
            )
        except FAILURES:
            return None


@settings(deadline=None)
@given(
    source=templates,
    said=st.lists(messages, min_size=1, max_size=6),
    variables=st.lists(kwargs, min_size=1, max_size=2),
    tools=tools,
)
def test_any_loop_over_any_growing_conversation_says_what_it_says_without_the_memo(
    source, said, variables, tools
):
    template, reference = ChatTemplate(source, {}, memo_bytes=MEMO), Reference(source)
    for length in [*range(1, len(said) + 1), 1]:
        for value in [*variables, variables[0]]:
            asked = prompt(said[:length], {"kwarg": value, "x": value}, tools)
            text = outcome(template.replay, asked)
            assert text == outcome(template.render, asked)
            expected = reference.render(said[:length], {"kwarg": value, "x": value}, tools)
            assert text == expected or (expected is None and isinstance(text, Reason))


def sources():
    yield pytest.param(CHATML, id="chatml")
    for file in sorted(TEMPLATES.glob("*.jinja")):
        yield pytest.param(file.read_text("utf-8"), id=file.stem)
    config = json.loads((EMBEDDED / "tokenizer_config.json").read_text("utf-8"))
    yield pytest.param(config["chat_template"], id="embedded")


@pytest.mark.parametrize("source", list(sources()))
def test_the_next_turn_of_a_conversation_runs_the_loop_for_its_new_messages_only(source):
    template = ChatTemplate(source, {"bos_token": "", "eos_token": ""}, memo_bytes=MEMO)
    said = [{"role": ("user", "assistant")[at % 2], "content": f"word {at}"} for at in range(100)]
    template.replay(prompt(said[:1]), LONGEST)
    for length in range(3, 100, 2):
        known = template.passages.misses
        parts = template.replay(prompt(said[:length]), LONGEST)
        # the message that was last had been told so: it may be asked for again
        assert template.passages.misses - known <= 3
        assert sum(isinstance(part, Passage) for part in parts) >= length - 3


SEARCH = (
    "{% set ns = namespace(looking=true, at=-1) %}{% for m in messages[::-1] %}"
    "{% set index = (messages|length - 1) - loop.index0 %}"
    "{% if ns.looking and m.role == 'user' %}"
    "{% set ns.looking = false %}{% set ns.at = index %}{% endif %}BODY{% endfor %}{{ ns.at }}"
)


@pytest.mark.parametrize(("more", "ends"), [("", True), ("{{ m.role }}", False)])
def test_a_loop_that_only_searches_ends_when_it_has_found(more, ends):
    source = SEARCH.replace("BODY", more)
    tree = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(source)
    prepare(tree)
    assert (tree.find(nodes.Break) is not None) is ends
    template, reference = ChatTemplate(source, {}, memo_bytes=MEMO), Reference(source)
    for roles in ("uuut", "tttt", "u", "tuu"):
        said = [{"role": {"u": "user", "t": "tool"}[role], "content": ""} for role in roles]
        assert outcome(template.replay, prompt(said)) == reference.render(said)


def test_numbers_and_flags_that_python_calls_equal_are_not():
    source = "{% for m in messages %}{{ kwarg }}{{ m.content }}{% endfor %}"
    template = ChatTemplate(source, {}, memo_bytes=MEMO)
    said = [{"role": "user", "content": "x"}]
    for value in (True, 1, "1", False, 0):
        for _ in range(2):
            text = outcome(template.replay, prompt(said, {"kwarg": value}))
            assert text == f"{value}x"


def test_messages_are_known_by_their_json_and_never_changed():
    template = ChatTemplate(CHATML, {}, memo_bytes=MEMO)
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    open_end = prompt(said)
    object.__setattr__(open_end, "continue_final_message", True)
    object.__setattr__(open_end, "add_generation_prompt", False)
    before = outcome(template.replay, prompt(said))
    assert outcome(template.replay, open_end).endswith("Well")
    assert outcome(template.replay, prompt(said)) == before


def test_the_memos_are_bounded_and_what_they_forget_is_rendered_again():
    template = ChatTemplate(CHATML, {}, memo_bytes=40_000)
    for number in range(200):
        said = [{"role": "user", "content": f"{number} " * 20}] * 2
        assert outcome(template.replay, prompt(said)) == outcome(template.render, prompt(said))
        assert template.told.size_bytes <= 20_000
        assert template.passages.size_bytes <= 20_000
    assert template.passages.size_bytes > 5_000


def test_too_long_a_text_is_refused_from_the_memo_too():
    template = ChatTemplate(CHATML, {}, memo_bytes=MEMO)
    said = [{"role": "user", "content": "x" * 100}] * 3
    template.replay(prompt(said), LONGEST)
    with pytest.raises(TokenizeFailed, match="too_large"):
        template.replay(prompt(said), 200)
