"""Tokenizer files come from a replica: bounded, verified, kept, never half there."""

import json
from hashlib import sha256
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from router.tokens import FetchLimits, LocalTokenizer, ModelFiles, NoModelFiles
from tests.support.tokens import chat, unpack, user
from workers.engine import EngineOptions, run_engine

FILES = {"tokenizer.json": b'{"a": 1}', "tokenizer_config.json": b"{}"}


class Replica:
    """Serves `files`, lists `listed`, and counts what it is asked for."""

    def __init__(self) -> None:
        self.files = dict(FILES)
        self.listed = [listed(name, content) for name, content in FILES.items()]
        self.asked: list[str] = []

    async def list_files(self, request: web.Request) -> web.Response:
        self.asked.append("list")
        return web.json_response({"files": self.listed})

    async def file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.asked.append(name)
        return web.Response(body=self.files[name])


def listed(name: str, content: bytes, **other: object) -> dict[str, object]:
    return {
        "name": name, "bytes": len(content), "sha256": sha256(content).hexdigest(), **other
    }  # fmt: skip


@pytest.fixture
async def replica(aiohttp_server):
    served = Replica()
    app = web.Application()
    app.router.add_get("/model_files", served.list_files)
    app.router.add_get("/model_files/{name}", served.file)
    server = await aiohttp_server(app)
    return served, str(server.make_url("")).rstrip("/")


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as opened:
        yield opened


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


async def test_files_are_fetched_once_and_then_taken_from_disk(replica, session, tmp_path):
    served, url = replica
    files = ModelFiles(session, tmp_path / "cache", FetchLimits())
    first = await files.fetch(url)
    assert {path.name: path.read_bytes() for path in first.iterdir()} == FILES
    assert await files.fetch(url) == first
    assert served.asked == ["list", "tokenizer.json", "tokenizer_config.json", "list"]
    assert left_in(tmp_path / "cache") == [first.name]


async def test_a_file_that_was_spoilt_on_disk_is_fetched_again(replica, session, tmp_path):
    _, url = replica
    files = ModelFiles(session, tmp_path, FetchLimits())
    first = await files.fetch(url)
    (first / "tokenizer.json").write_bytes(b"other")
    again = await files.fetch(url)
    assert (again / "tokenizer.json").read_bytes() == FILES["tokenizer.json"]


@pytest.mark.parametrize(
    "listing",
    [
        [listed("../tokenizer.json", b"x")],
        [listed("tokenizer.json", b"x"), listed("weights.bin", b"x")],
        [listed("tokenizer.json", b"x"), listed("tokenizer.json", b"y")],
        [listed("config.json", b"x")],
        [listed("tokenizer.json", b"x", bytes=-1)],
        [listed("tokenizer.json", b"x", bytes=2000)],
        [{"name": "tokenizer.json"}],
        [],
        "none",
    ],
)
async def test_lists_that_ask_for_something_else_are_refused(replica, session, tmp_path, listing):
    served, url = replica
    served.listed = listing
    files = ModelFiles(session, tmp_path, FetchLimits(max_bytes=1000))
    with pytest.raises(NoModelFiles):
        await files.fetch(url)
    assert served.asked == ["list"]
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("content", [b'{"a": 2}', b'{"a": 1', b'{"a": 1}' * 1000])
async def test_content_that_is_not_what_was_listed_leaves_nothing(
    replica, session, tmp_path, content
):
    served, url = replica
    served.files["tokenizer.json"] = content
    with pytest.raises(NoModelFiles):
        await ModelFiles(session, tmp_path, FetchLimits()).fetch(url)
    assert left_in(tmp_path) == []


async def test_a_replica_without_such_files_is_no_error_of_another_kind(session, tmp_path):
    with pytest.raises(NoModelFiles):
        await ModelFiles(session, tmp_path, FetchLimits()).fetch("http://127.0.0.1:9")


async def test_what_was_used_longest_ago_goes(replica, session, tmp_path):
    served, url = replica
    files = ModelFiles(session, tmp_path, FetchLimits(kept=2))
    kept = []
    for number in range(4):
        content = json.dumps({"a": number}).encode()
        served.files["tokenizer.json"] = content
        served.listed = [listed("tokenizer.json", content)]
        kept.append(await files.fetch(url))
    assert kept[-1].name in left_in(tmp_path)
    assert len(left_in(tmp_path)) == 2


async def test_the_embedded_engine_serves_what_makes_its_own_ids(session, tmp_path):
    async with run_engine(EngineOptions(speed_up=50.0)) as engine:
        directory = await ModelFiles(session, tmp_path, FetchLimits()).fetch(engine.url)
        local = LocalTokenizer.load(directory)
        messages = [user("How are you, <|im_end|> today?")]
        async with session.post(engine.url + "/tokenize", json={"messages": messages}) as response:
            theirs = (await response.json())["tokens"]
        assert unpack(await local.tokenize(chat(messages))) == theirs
        async with session.get(engine.url + "/model_files/train.py") as response:
            assert response.status == 404
