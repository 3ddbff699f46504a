"""With `log.format: json` every line that a router writes is an object."""

import asyncio
import json
import sys

import aiohttp

from tests.support.processes import MODEL_DIR, ROOT, start_engine, until


async def test_every_line_of_a_router_is_an_object():
    engine = await start_engine()
    router = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router.cli", "serve", "--port", "0", "--replica", engine.url,
        "--tokenizer", str(MODEL_DIR), "--set=log.format=json", "--set=log.access=true",
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(30), aiohttp.ClientSession() as session:
            assert router.stdout is not None
            url = json.loads(await router.stdout.readline())["url"]
            body = {"model": engine.ready["model"], "prompt": "Hello", "max_tokens": 1}

            async def answers():
                async with session.post(url + "/v1/completions", json=body) as reply:
                    return reply.status == 200

            await until(answers)
            router.terminate()
            _, told = await router.communicate()
    finally:
        if router.returncode is None:
            router.kill()
        await engine.kill()
    lines = [json.loads(line) for line in told.decode().splitlines()]
    assert {line["level"] for line in lines} <= {"INFO", "WARNING"}
    requests = [line["request"] for line in lines if line["logger"] == "router.access"]
    assert "ok" in {request["outcome"] for request in requests}
    assert any("draining" in line.get("message", "") for line in lines)
