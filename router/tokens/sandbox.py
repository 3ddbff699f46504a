"""Where chat templates run: as in `transformers`, but with a bound on time and on text.

Jinja's sandbox keeps a template from escaping; it does not keep it from looping for ever, nor from
doubling a string until memory ends. So every loop and macro looks at the clock, and text that
grows is charged to a budget. Reading a message's keys, a loop's state and a namespace takes short
cuts, because templates do little else. What a template computes is the same as without all this.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from types import BuiltinMethodType
from typing import Any, Final

from jinja2 import Template, nodes
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from router.tokens.loop_shape import REPLAY
from router.tokens.replay import Replay

FREE_CHARS: Final = 4096
"""Texts shorter than this are not charged: each costs a step of the template anyway."""

LARGEST_NUMBER: Final = 1_000_000
"""Widths, counts and factors above this have no place in a chat template."""

LARGEST_BITS: Final = 4096
COMPILE_CHARS: Final = 16 * 1024 * 1024

CONCAT: Final = "warmgate concat"
ADD: Final = "warmgate add"
"""Filters of ours; no template can name them."""

_UNWANTED_FILTERS: Final = ("random", "urlize", "pprint")
"""Not the same twice, or slow in a way that no step shows."""

_COUNTING_FILTERS: Final = ("batch", "center", "indent", "slice", "truncate", "wordwrap")
_GROWING_FILTERS: Final = ("center", "indent", "join", "replace", "wordwrap", "format")
_DICT_NAMES: Final = frozenset(dir(dict))
_STR_METHODS: Final = frozenset(
    name for name in dir(str) if not name.startswith("_") and not name.startswith("format")
)
_LOOP_NAMES: Final = frozenset(
    {"first", "last", "index", "index0", "revindex", "revindex0", "length", "previtem", "nextitem"}
)
_HARMLESS: Final = frozenset({str, bool, int, float, type(None), list, dict})
"""Types of values that have nothing to escape through; methods, say, go the sandbox's long way."""

_CAN_GROW: Final = (str, list, tuple)
_WIDTH: Final = re.compile(r"\d{6}|\*")


class BudgetSpent(Exception):
    """The template took too long, or made too much text. `what`: "time" or "text"."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class Budget:
    """What one rendering may still take: seconds of its thread's own computing, and characters of
    all texts that it makes. Waiting for a busy machine costs it nothing."""

    __slots__ = ("_computed_until", "_look_at", "chars")

    def __init__(self, seconds: float, chars: int) -> None:
        self.chars = chars
        self._computed_until = time.thread_time() + seconds
        self._look_at = time.monotonic() + seconds
        """Before this it can't be spent. The other clock is eight times as dear to read."""

    def step(self) -> None:
        """Raises BudgetSpent."""
        if time.monotonic() > self._look_at:
            left_s = self._computed_until - time.thread_time()
            if left_s <= 0:
                raise BudgetSpent("time")
            self._look_at = time.monotonic() + left_s

    def charge(self, value: Any) -> None:
        if isinstance(value, _CAN_GROW) and len(value) > FREE_CHARS:
            self.chars -= len(value)
            if self.chars < 0:
                raise BudgetSpent("text")


class _Current(threading.local):
    """Each thread's budget; the first one is for what Jinja computes while it compiles."""

    replay: Replay

    def __init__(self) -> None:
        self.budget = Budget(math.inf, COMPILE_CHARS)


class ChatSandbox(ImmutableSandboxedEnvironment):
    """The sandbox with budgets. One thread renders under one budget at a time (`spend`)."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=self._emit, **options)
        self._current = _Current()
        for name in _UNWANTED_FILTERS:
            del self.filters[name]
        for name in {*_COUNTING_FILTERS, *_GROWING_FILTERS}:
            self.filters[name] = self._guarded(self.filters[name])
        self.filters[CONCAT] = self._concat
        self.filters[ADD] = self._add
        self.filters[REPLAY] = self._replay
        del self.globals["lipsum"]

    def spend(self, budget: Budget, replay: Replay) -> None:
        """All that this thread renders from now on is charged to `budget`; loops ask `replay`."""
        self._current.budget = budget
        self._current.replay = replay

    def guarded_template(self, tree: nodes.Template) -> Template:
        """Compile a parsed template; `tree` is changed."""
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            step = nodes.ExprStmt(nodes.EnvironmentAttribute("step"))
            getattr(node, "body").insert(0, step.set_lineno(node.lineno))  # noqa: B009
        _charge_growth(tree)
        tree.set_environment(self)
        return self.template_class.from_code(self, self.compile(tree), dict(self.globals))

    @property
    def step(self) -> None:
        """Read at the start of each loop's and macro's body. Raises BudgetSpent."""
        return self._current.budget.step()

    @property
    def on_turn(self) -> None:
        """Read at the start of each turn of a loop that can be remembered."""
        self._current.replay.turn()

    @property
    def on_end(self) -> None:
        """Read behind such a loop."""
        self._current.replay.end()

    def _replay(self, items: Any, number: int, *values: Any) -> Any:
        return self._current.replay.enter(number, items, values)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _DICT_NAMES:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        if type(obj) is str and attribute in _STR_METHODS:
            return getattr(obj, attribute)
        if (type(obj) is LoopContext and attribute in _LOOP_NAMES) or type(obj) is Namespace:
            value = getattr(obj, attribute, None)
            if value is not None and type(value) in _HARMLESS and attribute[:1] != "_":
                return value
        return super().getattr(obj, attribute)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if type(obj) is BuiltinMethodType and type(obj.__self__) is str:
            kwargs.pop("_block_vars", None)  # Jinja's own, meant for functions that see a context
            kwargs.pop("_loop_vars", None)
            _check_counts(args, kwargs)
            value = obj(*args, **kwargs)
        else:
            if getattr(obj, "__name__", "") in ("format", "format_map"):
                _check_format(obj, args, kwargs)
            value = super().call(context, obj, *args, **kwargs)
        self._current.budget.charge(value)
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_product(left, right)
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_width(left)
        value = self.binop_table[operator](left, right)
        self._current.budget.charge(value)
        return value

    def _emit(self, value: Any) -> Any:
        if type(value) is str and len(value) <= FREE_CHARS:
            return value
        self._current.budget.charge(value)
        return value

    def _concat(self, values: list[Any]) -> str:
        text = "".join(map(str, values))
        self._current.budget.charge(text)
        return text

    def _add(self, values: list[Any]) -> Any:
        left, right = values
        value = left + right
        self._current.budget.charge(value)
        return value

    def _guarded(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            _check_counts(args, kwargs)
            value = work(*args, **kwargs)
            self._current.budget.charge(value)
            return value

        # Jinja reads from this attribute what to pass first: the context, itself or nothing.
        for name, passed in vars(work).items():
            setattr(guarded, name, passed)
        return guarded


def _charge_growth(node: nodes.Node) -> None:
    """Put filters that charge in the place of `~` and `+`, which have no cheap hook of their own.

    A sum that is put out at once is charged there; most sums are of that kind.
    """
    for field, value in node.iter_fields():
        if isinstance(node, nodes.Output):
            for item in node.nodes:
                _charge_terms(item)
        elif isinstance(value, list):
            value[:] = [_charged(item) for item in value]
        else:
            setattr(node, field, _charged(value))


def _charge_terms(item: nodes.Node) -> None:
    if isinstance(item, nodes.Add):
        for side in ("left", "right"):
            term = getattr(item, side)
            if isinstance(term, nodes.Add):
                _charge_terms(term)
            else:
                setattr(item, side, _charged(term))
    else:
        _charge_growth(item)


def _charged(item: Any) -> Any:
    if isinstance(item, tuple):  # pairs of a with block, keywords of a call
        return tuple(_charged(part) for part in item)
    if not isinstance(item, nodes.Node):
        return item
    _charge_growth(item)
    if isinstance(item, nodes.Concat):
        name, values = CONCAT, item.nodes
    elif isinstance(item, nodes.Add):
        name, values = ADD, [item.left, item.right]
    else:
        return item
    made = nodes.Filter(nodes.List(values), name, [], [], None, None)
    return made.set_lineno(item.lineno)


def _check_counts(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            raise BudgetSpent("text")


def _check_format(obj: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    text = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
    if isinstance(text, str):
        _check_width(text)
    _check_counts(args, kwargs)


def _check_width(form: str) -> None:
    if _WIDTH.search(form):
        raise BudgetSpent("text")


def _check_product(left: Any, right: Any) -> None:
    for some, times in ((left, right), (right, left)):
        if isinstance(some, str | list | tuple) and isinstance(times, int):
            if len(some) * times > LARGEST_NUMBER:
                raise BudgetSpent("text")
            return
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(max(1, left.bit_length()) * abs(right))


def _check_bits(bits: int) -> None:
    if bits > LARGEST_BITS:
        raise BudgetSpent("time")
