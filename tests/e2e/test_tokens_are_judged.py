"""A router whose template is not the engine's finds out, asks the engine, and predicts right."""

from random import Random

import aiohttp
import yaml

from tests.support.processes import Fleet, fleet, until
from tests.support.streaming import Streamed, chat

WORDS = "harbour valley feather window market ladder bridge candle mirror river".split()
OTHER = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"


async def ask(run: Fleet, seed: int) -> Streamed:
    rng = Random(seed)
    text = f"{seed} " + " ".join(rng.choice(WORDS) for _ in range(150))
    return await chat(run.session, run.router.url, run.model, [{"role": "user", "content": text}])


async def metric(session: aiohttp.ClientSession, url: str, name: str) -> float:
    async with session.get(url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def test_a_wrong_template_is_found_out_and_the_engine_is_asked_instead(tmp_path):
    flags = ("--profile", "laptop", "--speed-up", "20")
    async with fleet(1, engine_flags=flags) as right:
        model = right.model
        await ask(right, 1)
        await until(lambda: is_trusted(right, 1.0))
    config = tmp_path / "router.yaml"
    config.write_text(yaml.safe_dump({"tokens": {"engines": {model: {"chat_template": OTHER}}}}))
    async with fleet(1, engine_flags=flags, router_flags=("--config", str(config))) as run:
        await ask(run, 1)
        await until(lambda: is_trusted(run, 0.0))
        for seed in (2, 3):
            await ask(run, seed)

            async def is_predicted(seed: int = seed) -> bool:
                reply = await ask(run, seed)
                return reply.cached_tokens > 0 and reply.predicted_hit == reply.cached_tokens

            await until(is_predicted)
        assert await is_trusted(run, 0.0)


async def is_trusted(run: Fleet, wanted: float) -> bool:
    judged = await metric(run.session, run.router.url, "warmgate_tokenizer_verdicts_total{")
    name = run.model if wanted == 0.0 else "*"
    series = f'warmgate_tokenizer_trusted{{tokenizer="{name}"}}'
    trusted = await metric(run.session, run.router.url, series)
    return judged > 0 and trusted == wanted
