"""`warmgate tokens` shows a request as the router sees it."""

import json

import pytest

from router.blocks import hash_blocks, prefix_seed
from router.cli import main
from router.tokens import LocalTokenizer, take_apart
from tests.support.tokens import assistant, chat, user, write_model_dir

TURNS = [user("The quick brown fox " * 6)]
MORE = [*TURNS, assistant("jumps"), user("over")]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model_dir(tmp_path_factory.mktemp("model"))


def written(path, messages, **fields):
    path.write_text(json.dumps({"model": "m", "messages": messages, **fields}), "utf-8")
    return str(path)


async def test_pieces_and_blocks_cover_the_prompt(model_dir):
    made = LocalTokenizer.load(model_dir)
    await made.tokenize(chat(TURNS))
    shown = await take_apart(made, chat(MORE, cache_salt="s"), block_size=4, adapter="a")
    assert sum(piece.tokens for piece in shown.pieces) == len(shown.tokens) // 4
    assert [piece.start for piece in shown.pieces][:2] == [0, shown.pieces[0].tokens]
    assert {piece.is_remembered for piece in shown.pieces} == {True, False}
    assert list(shown.prefix) == list(hash_blocks(shown.tokens, 4, prefix_seed("s", "a")))


def test_the_command_prints_tokens_blocks_and_what_is_remembered(model_dir, tmp_path, capsys):
    before, now = written(tmp_path / "a", TURNS), written(tmp_path / "b", MORE)
    assert main(["tokens", now, "--after", before, "--tokenizer", str(model_dir)]) == 0
    out = capsys.readouterr().out
    assert "full blocks of 16" in out
    assert "remembered" in out
    assert "new" in out
    assert "no block yet" in out


@pytest.mark.parametrize(
    ("fields", "word"),
    [({"chat_template": "x"}, "unsupported"), ({"model": ""}, "model"), ({"messages": 5}, "list")],
)
def test_what_has_no_tokens_says_why(model_dir, tmp_path, capsys, fields, word):
    name = written(tmp_path / "a", TURNS)
    body = json.loads((tmp_path / "a").read_text("utf-8")) | fields
    (tmp_path / "a").write_text(json.dumps(body), "utf-8")
    assert main(["tokens", name, "--tokenizer", str(model_dir)]) == 2
    assert word in capsys.readouterr().err


def test_a_model_without_a_tokenizer_says_so(tmp_path, capsys):
    assert main(["tokens", written(tmp_path / "a", TURNS)]) == 2
    assert "--tokenizer" in capsys.readouterr().err
