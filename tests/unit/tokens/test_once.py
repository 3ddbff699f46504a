"""Ids go to the engine in the place of text, where that changes nothing else."""

import json

import pytest

from router.openai.generation import parse_generation
from router.tokens.once import body_with_ids
from tests.support.tokens import chat, completion, user

IDS = b"".join(number.to_bytes(4, "little") for number in (5, 6, 7))


def test_only_the_prompt_changes():
    raw = (
        b'{"model": "m", "user": "\\u0041 text", "prompt": "\\u0041 text", "x": 1.50, "y": [1 ,2]}'
    )
    body = body_with_ids(parse_generation("/v1/completions", {}, raw), IDS)
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
    assert body_with_ids(generation, IDS) == generation.body


@pytest.mark.parametrize("fields", [{"echo": False}, {"suffix": None}, {"n": 2, "logprobs": 1}])
def test_what_does_not_need_the_text_gets_ids(fields):
    body = json.loads(body_with_ids(completion("text", **fields), IDS))
    assert body == {"model": "m", "prompt": [5, 6, 7], **fields}


@pytest.mark.parametrize(
    "generation", [chat([user("Hi")]), completion([1, 2]), completion(["a", "b"])]
)
def test_chats_ids_and_batches_go_as_they_came(generation):
    assert body_with_ids(generation, IDS) == generation.body


def test_without_ids_the_text_goes():
    generation = completion("text")
    assert body_with_ids(generation, b"") == generation.body
