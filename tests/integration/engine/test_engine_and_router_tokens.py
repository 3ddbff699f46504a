"""The router's own tokenizing of the engine's model folder gives the ids that the engine sees."""

import json

import aiohttp
import pytest

from router.openai.generation import parse_generation
from router.tokens import LocalTokenizer
from tests.support.engine import post
from workers.engine import EngineOptions, run_engine
from workers.engine.tokenizer import MODEL_FOLDER

TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"q": {}}}},
}
CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"q": "é<b>"}'},
}
USER = {"role": "user", "content": "What is  the capital of France?\n\n"}
CHATS: dict[str, dict[str, object]] = {
    "plain": {"messages": [USER]},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
    "turns": {"messages": [USER, {"role": "assistant", "content": "Paris <|im_end|>"}, USER]},
    "parts": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "one"},
                    {"type": "text", "text": ""},
                    {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}},
                ],
            }
        ]
    },
    "tools": {"messages": [USER], "tools": [TOOL]},
    "tools and system": {"messages": [{"role": "system", "content": "Hi."}, USER], "tools": [TOOL]},
    "calls": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
            {"role": "tool", "tool_call_id": "1", "content": "Paris"},
        ],
        "tools": [TOOL],
    },
    "no prompt": {"messages": [USER], "add_generation_prompt": False},
    "continued": {
        "messages": [USER, {"role": "assistant", "content": "It is "}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "variables": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
    "truncated": {"messages": [USER], "truncate_prompt_tokens": 7},
    "unicode": {"messages": [{"role": "user", "content": "ß 漢字 🙂 \u200d é"}]},
}


@pytest.mark.parametrize("name", CHATS)
async def test_chats_get_the_same_ids(name):
    body = {"model": "warmgate-tiny", "max_tokens": 1, **CHATS[name]}
    async with (
        run_engine(EngineOptions(speed_up=100.0)) as running,
        aiohttp.ClientSession(base_url=running.url) as http,
    ):
        reply = await post(http, "/v1/chat/completions", {**body, "return_token_ids": True})
    generation = parse_generation("/v1/chat/completions", {}, json.dumps(body).encode())
    tokens = await LocalTokenizer.load(MODEL_FOLDER).tokenize(generation)
    assert memoryview(tokens).cast("I").tolist() == reply["prompt_token_ids"]
