"""A template computes what Jinja's own sandbox computes, within bounds, and cannot get out."""

# ruff: noqa: E501 - a template reads best in one line

import json
import time
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.tokens import ChatTemplate, Reason, TokenizeFailed
from router.tokens.prompt import ChatPrompt
from router.tokens.sandbox import Budget, BudgetSpent

HERE = Path(__file__)
MESSAGES = [{"role": "user", "content": "x" * 10}, {"role": "assistant", "content": "a <b> c"}]
GROW = "{% set ns = namespace(x='aaaaaaaa', l=[1]) %}{% for a in range(99) %}{% set %}{% endfor %}"
MACRO = "{% macro f(n) %}BODY{% endmacro %}{{ f(60) }}"

ENDLESS = {
    "nested loops": "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3,
    "recursion": MACRO.replace("BODY", "{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"),
    "doubled by a macro": MACRO.replace(
        "BODY", "{% if n %}{% set x = f(n - 1) %}{{ x }}{{ x }}{% else %}aaaaaaaaaa{% endif %}"
    ),
    "power": "{{ 9 ** (9 ** 9) }}",
    "product": "{{ 'a' * 10 ** 9 }}",
    "list product": "{{ [1] * 10 ** 9 }}",
    "percent width": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (1000000000, 1) }}",
    "format width": "{{ '{:>1000000000}'.format('a') }}",
    "format argument": "{{ '{:>{}}'.format('a', 1000000000) }}",
    "center": "{{ 'a'.center(1000000000) }}",
    "center filter": "{{ 'a' | center(1000000000) }}",
    "doubled by ~": GROW.replace("{% set %}", "{% set ns.x = ns.x ~ ns.x %}"),
    "doubled by +": GROW.replace("{% set %}", "{% set ns.x = ns.x + ns.x %}"),
    "doubled by replace": GROW.replace("{% set %}", "{% set ns.x = ns.x.replace('a', 'aa') %}"),
    "doubled by a block": GROW.replace("{% set %}", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    "doubled by join": GROW.replace("{% set %}", "{% set ns.x = [ns.x, ns.x] | join %}"),
    "doubled list": GROW.replace("{% set %}", "{% set ns.l = ns.l + ns.l %}"),
    "lorem ipsum": "{{ lipsum(n=100000000) }}",
}  # fmt: skip

ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__']['__mro__'] }}",
    "{{ (messages | map(attribute='__class__') | list)[0].__mro__ }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{x.__class__.__mro__}'.format_map({'x': ''}) }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ strftime_now.__closure__[0] }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ namespace.__init__.__globals__.os }}",
    "{{ self._TemplateReference__context.environment.step }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ (''|attr('__class__')).__mro__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% for m in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% for m in messages %}{{ loop._to_iterator.__func__ }}{% endfor %}",
    "{% set ns = namespace(a=1) %}{{ ns.__class__.__mro__ }}",
    "{% set ns = namespace(a=1) %}{{ ns.__init__.__globals__ }}",
    "{% set ns = namespace() %}{% set ns.f = '{0.__class__.__mro__}'.format %}{{ ns.f([]) }}",
]

SAME = [
    "{% for m in messages %}{{ m.content.split(' ')[-1].strip() }}|{{ m.role ~ ': ' ~ loop.index }}{% endfor %}",
    "{{ messages | length + 1 }}{{ 7 * 6 }}{{ 2 ** 8 }}{{ '%s-%03d' % ('a', 5) }}{{ '-' * 20 }}",
    "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + m.content %}{% endfor %}{{ ns.t }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ missing ~ [1, 'b'] }}{{ [1] + [2] }}{{ 1.5 + 2 }}",
    "{{ messages[0].items() | list }}{{ messages[0].nope is defined }}{{ messages[0].keys() | list }}",
    "{% macro f(x, y='d') %}{{ x + y }}{{ caller() if caller }}{% endmacro %}{{ f('a') }}{% call f('b') %}in{{ 1 + 2 }}{% endcall %}",
    "{{ '{} {x:>4}'.format(1, x='r') }}{{ 'ab'.replace('a', 'c') }}{{ 'x'.center(9) }}{{ 'x' | center(9) }}",
    "{% for k, v in messages[0] | dictsort %}{{ k }}={{ v }};{% endfor %}{{ messages | map(attribute='role') | join(',') }}",
    "{% for m in messages if m.role == 'user' %}{{ loop.length }}{{ loop.first }}{% else %}none{% endfor %}",
    "{% for m in messages %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.last }}{{ loop.depth }}{{ loop.nope is defined }}"
    "{{ (loop.previtem or m).role }}{{ loop.nextitem is defined }}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}{% endfor %}",
    "{% set ns = namespace(a=none, b=[1], _c=2) %}{{ ns.a }}{{ ns.b }}{{ ns._c }}{{ ns.nope is defined }}{% set ns.b = 'x' %}{{ ns.b.upper() }}",
    "{% set ns = namespace(f='a{}'.format, u='b'.upper) %}{{ ns.f(1) }}{{ ns.u() }}",
    "{% for x in [[1, [2]], [3]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}",
    "{% filter upper %}a{{ 'b' + 'c' }}{% endfilter %}{% set x %}{{ 'q' + 'r' }}{% endset %}{{ x * 2 }}",
    "{% with a = 'b' + 'c' %}{{ a }}{% endwith %}{{ {'k': 'v' + 'w'}.k }}{{ ('a' + 'b').upper() + 'c' }}",
    "{{ messages[0]['content'][:3] + '…' if messages[0].content | length > 3 else '' }}",
    "{{ 'text' | indent(4, true) }}{{ 'a b c' | wordwrap(3) }}{{ [1, 2, 3] | batch(2) | list }}",
    "{{ '<a>' + ('<b>' | e) + ('<c>' | safe) }}{{ ('<b>' | e) ~ '<d>' }}",
]  # fmt: skip


def render(source: str, seconds: float = 10.0) -> str:
    prompt = ChatPrompt(json.loads(json.dumps(MESSAGES)), None, {})
    return ChatTemplate(source, {}).render(prompt, 1 << 20, seconds)


@pytest.mark.parametrize("source", SAME)
def test_a_template_computes_what_jinja_computes(source):
    stock = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    wanted = stock.from_string(source).render(messages=json.loads(json.dumps(MESSAGES)))
    assert render(source) == wanted


@pytest.mark.parametrize("name", ENDLESS)
def test_time_and_text_are_bounded(name):
    started = time.thread_time()
    with pytest.raises(TokenizeFailed) as failed:
        render(ENDLESS[name], seconds=0.3)
    assert failed.value.reason in (Reason.TEMPLATE_ERROR, Reason.TOO_LARGE)
    assert time.thread_time() - started < 3


def test_only_computing_counts_not_waiting_for_a_busy_machine():
    budget = Budget(seconds=0.05, chars=100)
    time.sleep(0.1)
    budget.step()
    started = time.thread_time()
    while time.thread_time() - started < 0.06:
        pass
    time.sleep(0.05)  # the budget looks again when it could be spent
    with pytest.raises(BudgetSpent):
        budget.step()


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_cannot_get_out(source):
    with pytest.raises(TokenizeFailed) as failed:
        render(source)
    assert failed.value.reason is Reason.TEMPLATE_ERROR


def test_output_longer_than_allowed_is_too_large():
    with pytest.raises(TokenizeFailed) as failed:
        render("{% for a in range(9999) %}" + "x" * 1000 + "{% endfor %}")
    assert failed.value.reason is Reason.TOO_LARGE
