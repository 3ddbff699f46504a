"""An expression's table finds what Python's `re` finds, which goes back where it must."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.tokens.automaton import (
    END,
    START,
    WIDTH,
    NotFollowed,
    Table,
    begins_anew,
    can_match,
    table_of,
)

FAMILIES = {
    "bytes": r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+",
    "gpt-4": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{1,3}"
        r"| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "gpt-oss": (
        r"[^\r\nA-Za-z0-9]?[A-Z]*[a-z]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\nA-Za-z0-9]?[A-Z]+[a-z]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[0-9]{1,3}| ?[^\sA-Za-z0-9]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
BITS = [*"aAzZ09'sSlLtTrReEvVmMdD \t\r\n/.!", "'re", "'LL", "  ", "\r\n", "HTTPServer", "\x1c\x0b"]
texts = st.lists(st.sampled_from(BITS) | st.text(string.printable, max_size=3)).map("".join)

characters = st.sampled_from(["a", "b", r"\s", r"\S", "[ab]", "[^a]", r"[^\sb]", r"\n", r"\."])


def more(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda found: f"(?:{'|'.join(found)})"),
        st.builds("(?:{}){}".format, inner, st.sampled_from(["?", "*", "+", "{2}", "{1,3}", "+?"])),
        st.builds("{}(?!{})".format, inner, characters),
        st.builds("{}(?={})".format, inner, characters),
        inner.map("(?i:{})".format),
    )


expressions = st.recursive(characters, more, max_leaves=12)


def end_of(table: Table, text: str, at: int) -> int | None:
    """Where the match at a place ends."""
    state, found = START, None
    for place in range(at, len(text) + 1):
        character = ord(text[place]) if place < len(text) else END
        reached = int(table[WIDTH * state + character])
        if reached & 1:
            found = place
        state = reached >> 1
    return found


def end_by_re(source: str, text: str, at: int) -> int | None:
    found = re.compile(source, re.ASCII).match(text, at)
    return None if found is None else found.end()


@pytest.mark.parametrize("family", FAMILIES)
@given(text=texts)
def test_families_expressions_match_where_they_do_for_re(family, text):
    table = table_of(FAMILIES[family])
    for at in range(len(text)):
        assert end_of(table, text, at) == end_by_re(FAMILIES[family], text, at)


@given(source=expressions, text=st.text("abAB \n.", max_size=12))
def test_any_expression_matches_where_it_does_for_re_or_is_not_followed(source, text):
    try:
        table = table_of(source)
    except NotFollowed:
        return
    for at in range(len(text) + 1):
        assert end_of(table, text, at) == end_by_re(source, text, at)


@pytest.mark.parametrize(
    "source",
    ["a*", "a?", "", "a|", "(?:a*)*b", "(?:a?)+", "a++", "a?+", "(a)", r"(?!ab)c", "(?!a", "a)",
     "*a", "a{0}", ".", "^a", r"\bx", r"\1", "[b-a]", "a{1,3000}", r"\Z", "(?=a)"],
)  # fmt: skip
def test_what_is_not_known_or_matches_nothing_is_not_followed(source):
    with pytest.raises(NotFollowed):
        table_of(source)


def test_an_expression_for_other_characters_never_matches():
    assert not can_match(table_of("[\u4e00-\u9fa5]+"))
    assert can_match(table_of("[\u4e00-\u9fa5a]+"))


@pytest.mark.parametrize(
    ("ending", "following", "begins"),
    [("\n\n", "aZ0", True), ("\n\n", "/", False), ("\n\n", "\n", False), (" ", "a", False)],
)
def test_a_paragraph_begins_a_word_of_its_own_in_every_text(ending, following, begins):
    assert begins_anew(table_of(FAMILIES["gpt-oss"]), ending, following) is begins
    pattern = re.compile(FAMILIES["gpt-oss"], re.ASCII)
    befores = ["", *BITS, *(one + other for one in BITS for other in BITS)]
    texts = [(before + ending, one + "s re") for before in befores for one in following]
    apart = all(
        pattern.findall(before) + pattern.findall(text) == pattern.findall(before + text)
        for before, text in texts
    )
    assert apart is begins
