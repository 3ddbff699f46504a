"""Whether a chat template wants a message's content as one text or as a list of parts.

vLLM decides by the template's syntax tree: a loop over a message's content means parts. The same
decision here, from vllm/renderers/hf.py of 0.32.0, by the same signs.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes


def iterates_over_content(template: nodes.Template) -> bool:
    """True if a template loops over a message's content, so that it must be given parts."""
    try:
        loops = _message_names(template)
        return _loops_over(template, loops, _macro_loops(template, loops))
    except _Unreadable:
        return False


class _Unreadable(Exception):
    """The template binds names in a way that the engine's analysis gives up on."""


def _loops_over(
    template: nodes.Template, messages: list[str], macro_loops: dict[int, set[str]]
) -> bool:
    for loop in template.find_all(nodes.For):
        over = loop.iter
        if any(_reads(over, name, "content") for name in messages):
            _target(loop)
            return True
        if not isinstance(over, nodes.Name):
            continue
        parameters = macro_loops.get(id(loop))
        if over.name in parameters if parameters is not None else over.name == "content":
            _target(loop)
            return True
    return False


def _message_names(template: nodes.Template) -> list[str]:
    """Names that loops give to a single message."""
    lists = list(_aliases(template, "messages"))
    return [
        _target(loop)
        for loop in template.find_all(nodes.For)
        if any(_reads(loop.iter, name) for name in lists)
    ]


def _aliases(template: nodes.Template, name: str) -> Iterator[str]:
    """`name`, and every name that is assigned it, a slice of it, or an alias of it."""
    seen = [name]
    for known in seen:
        yield known
        for assign in template.find_all(nodes.Assign):
            if not _reads(assign.node, known):
                continue
            if not isinstance(assign.target, nodes.Name):
                raise _Unreadable
            if assign.target.name not in seen:
                seen.append(assign.target.name)


def _macro_loops(template: nodes.Template, messages: list[str]) -> dict[int, set[str]]:
    """For each loop inside a macro: the macro's parameters that are given a message's content."""
    found: dict[int, set[str]] = {}
    for macro in template.find_all(nodes.Macro):
        given = set(_content_parameters(template, macro, messages))
        for loop in macro.find_all(nodes.For):
            found[id(loop)] = given or found.get(id(loop), set())
    return found


def _content_parameters(
    template: nodes.Template, macro: nodes.Macro, messages: list[str]
) -> Iterator[str]:
    names = [argument.name for argument in macro.args]
    for call in template.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        given = [*zip(names, call.args, strict=False)]
        given += [(word.key, word.value) for word in call.kwargs if word.key in names]
        for name, value in given:
            if any(_reads(value, message, "content") for message in messages):
                yield name


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether an expression is the variable (or its `key`), maybe filtered, tested or sliced."""
    while isinstance(node, nodes.Filter | nodes.Test) or _is_slice(node):
        node = node.node  # type: ignore[union-attr]
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        is_key = isinstance(node.arg, nodes.Const) and node.arg.value == key
    else:
        is_key = isinstance(node, nodes.Getattr) and node.attr == key
    return is_key and _reads_name(node.node, name)  # type: ignore[union-attr]


def _reads_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _is_slice(node: nodes.Node | None) -> bool:
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)


def _target(loop: nodes.For) -> str:
    if not isinstance(loop.target, nodes.Name):
        raise _Unreadable
    return loop.target.name
