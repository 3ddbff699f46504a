"""Ids go to the engine in the place of text, where that changes nothing else."""

import json

import pytest

from router.openai.generation import Kind, parse_generation
from router.tokens.once import body_with_ids
from tests.support.tokens import chat, completion, user

IDS = b"".join(number.to_bytes(4, "little") for number in (5, 6, 7))
TEXTS = {Kind.COMPLETION}


def test_only_the_prompt_changes():
    raw = (
        b'{"model": "m", "user": "\\u0041 text", "prompt": "\\u0041 text", "x": 1.50, "y": [1 ,2]}'
    )
    body = body_with_ids(parse_generation("/v1/completions", {}, raw), IDS, TEXTS)
    assert body == b'{"model":"m","user":"\\u0041 text","prompt":[5,6,7],"x":1.50,"y":[1 ,2]}'


@pytest.mark.parametrize(
    "fields",
    [
        {"echo": True},
        {"suffix": "s"},
        {"truncate_prompt_tokens": 5},
        {"use_beam_search": True},
    ],
)
def test_what_needs_the_text_keeps_it(fields):
    generation = completion("text", **fields)
    assert body_with_ids(generation, IDS, TEXTS) == generation.body


@pytest.mark.parametrize("fields", [{"echo": False}, {"suffix": None}, {"n": 2, "logprobs": 1}])
def test_what_does_not_need_the_text_gets_ids(fields):
    body = json.loads(body_with_ids(completion("text", **fields), IDS, TEXTS))
    assert body == {"model": "m", "prompt": [5, 6, 7], **fields}


@pytest.mark.parametrize(
    "generation", [chat([user("Hi")]), completion([1, 2]), completion(["a", "b"])]
)
def test_chats_ids_and_batches_go_as_they_came(generation):
    assert body_with_ids(generation, IDS, TEXTS) == generation.body


def test_without_ids_the_text_goes():
    generation = completion("text")
    assert body_with_ids(generation, b"", TEXTS) == generation.body


def test_chats_get_their_ids_beside_the_messages_where_that_is_asked_for():
    generation = chat([user("Hi")], temperature=0.5)
    body = json.loads(body_with_ids(generation, IDS, {Kind.CHAT}))
    assert body == {**json.loads(generation.body), "input_ids": [5, 6, 7]}


@pytest.mark.parametrize("fields", [{"input_ids": [1]}, {"truncate_prompt_tokens": 5}])
def test_chats_whose_ids_are_settled_already_go_as_they_came(fields):
    generation = chat([user("Hi")], **fields)
    assert body_with_ids(generation, IDS, {Kind.CHAT}) == generation.body


def test_a_chat_without_ids_goes_as_it_came():
    generation = chat([user("Hi")])
    assert body_with_ids(generation, b"", {Kind.CHAT}) == generation.body
