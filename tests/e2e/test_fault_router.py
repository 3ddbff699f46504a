"""The router itself: told to stop, told to read its configuration again, out of descriptors."""

import asyncio
import resource
import signal
import ssl
import time

import aiohttp
import psutil
import yaml

from tests.support.faults import CHAT, FaultyEngine, bed, works, works_slowly
from tests.support.load import MOST_MS, ask_probes, hammered, quantile
from tests.support.processes import start, until
from tests.support.raw_http import DONE, LAST, STREAM_HEAD, chunk, event
from tests.support.tls import certificate

BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}


async def streams_for_two_seconds(connection, is_stream):
    await connection.send(STREAM_HEAD)
    for number in range(20):
        await connection.send(chunk(event(f"t{number}")))
        await asyncio.sleep(0.1)
    await connection.send(chunk(DONE) + LAST)


async def is_answer(session, url, wanted):
    try:
        async with session.get(url) as response:
            return response.status == wanted
    except aiohttp.ClientConnectorError:
        return wanted == 0


async def test_told_to_stop_it_is_unready_then_deaf_then_gone_and_streams_end_whole():
    settings = ("listen.settle_s=0.5", "listen.drain_s=10", "listen.admin_port=0")
    async with bed(streams_for_two_seconds, settings=settings, is_ready=False) as run:
        admin = run.router.ready["admin_url"]
        await until(lambda: is_answer(run.session, admin + "/readyz", 200))
        asking = asyncio.create_task(run.ask(is_stream=True))
        await until(lambda: _is(run.engines[0].in_flight == 1))
        run.router.process.send_signal(signal.SIGTERM)
        told_at = time.monotonic()
        await until(lambda: is_answer(run.session, admin + "/readyz", 503))
        assert await is_answer(run.session, run.router.url + "/healthz", 200)
        await until(lambda: is_answer(run.session, run.router.url + "/healthz", 0))
        assert time.monotonic() - told_at >= 0.4
        assert await is_answer(run.session, admin + "/readyz", 503)
        got = await asking
        assert (got.status, got.error, got.is_whole) == (200, None, True)
        assert got.body.endswith(DONE)
        async with asyncio.timeout(10):
            assert await run.router.process.wait() == 0


async def test_a_stream_that_outlasts_the_drain_is_cut_and_the_exit_is_still_clean():
    async with bed(works_slowly, settings=("listen.drain_s=0.3",)) as run:
        asking = asyncio.create_task(run.ask(is_stream=True))
        await until(lambda: _is(run.engines[0].in_flight == 1))
        assert await run.router.stop() == 0
        got = await asking
        assert not got.is_whole
        await until(lambda: _is(run.engines[0].in_flight == 0))


async def test_reloading_takes_new_replicas_and_cuts_no_stream(tmp_path):
    engines = [FaultyEngine(streams_for_two_seconds), FaultyEngine(works)]
    for engine in engines:
        await engine.listen()
    path = tmp_path / "warmgate.yaml"

    def write(*replicas):
        rows = [{"id": f"r{n}", "url": engines[n].url} for n in replicas]
        health = {"interval_s": 0.3, "retry_interval_s": 0.1}
        tree = {"replicas": rows, "tokens": {"remote": False}, "health": health}
        path.write_text(yaml.safe_dump(tree))

    write(0)
    router = await start("router.cli", "serve", "--port=0", "--config", str(path))
    try:
        async with aiohttp.ClientSession(router.url) as session:
            await until(lambda: is_answer(session, "/readyz", 200))

            async def ask():
                async with session.post(CHAT, json=BODY) as response:
                    return response.headers["x-warmgate-replica"], await response.read()

            asking = asyncio.create_task(ask())
            await until(lambda: _is(engines[0].in_flight == 1))
            path.write_text("replicas: [oh")
            router.process.send_signal(signal.SIGHUP)
            write(1)
            await asyncio.sleep(0.1)
            router.process.send_signal(signal.SIGHUP)

            async def is_moved():
                async with session.get("/debug/replicas") as response:
                    rows = (await response.json())["replicas"]
                return [(row["id"], row["is_healthy"]) for row in rows] == [("r1", True)]

            await until(is_moved)
            assert (await ask())[0] == "r1"
            replica, body = await asking
            assert replica == "r0"
            assert body.endswith(DONE)
            await until(lambda: _is(not any(engine.in_flight for engine in engines)))
    finally:
        await router.kill()
        for engine in engines:
            await engine.stop()


async def test_out_of_descriptors_it_serves_on_when_there_are_some_again():
    async with bed(works_slowly) as run:
        process = psutil.Process(run.router.process.pid)
        most = process.num_fds() + 40
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, most))
        asking = [asyncio.create_task(ask_anyhow(run)) for _ in range(60)]
        await until(lambda: _is(any(task.done() for task in asking)))
        refused = [task.result() for task in asking if task.done()]
        assert set(refused) <= {"router_overloaded", "lost"}
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        run.engines[0].fault = works

        async def serves():
            try:
                got = await run.ask(is_stream=False)
                return got.status == 200 and await run.is_idle()
            except aiohttp.ClientError:
                return False

        await until(serves)
        assert await run.metric("warmgate_replica_failures_total") == 0
        assert await run.router.stop() == 0


async def ask_anyhow(run):
    try:
        got = await run.ask(is_stream=True)
    except aiohttp.ClientError:
        return "lost"
    return (got.error or {}).get("code")


async def test_probes_answer_within_100_ms_under_full_load():
    settings = ("listen.admin_port=0",)
    async with bed(works, works, settings=settings, is_ready=False) as run:
        admin = run.router.ready["admin_url"]
        await until(lambda: is_answer(run.session, admin + "/readyz", 200))

        async def are_prompt():
            took = await asyncio.to_thread(ask_probes, admin, 2.0)
            return all(quantile(times, 0.9) < MOST_MS for times in took.values())

        # nine in ten, of two seconds that the machine does not give to others
        async with hammered(run, 64):
            await until(are_prompt)
        async with run.session.get(run.router.url + "/metrics") as response:
            assert response.status == 404


async def test_certificates_are_read_again_and_a_unix_socket_is_served(tmp_path):
    cert = tmp_path / "tls.pem"
    cert.write_bytes(certificate("first"))
    unix = tmp_path / "warmgate.sock"
    settings = (f"listen.tls_cert={cert}", f"listen.unix_path={unix}", "listen.admin_port=0")
    async with bed(works, settings=settings, is_ready=False) as run:
        port = int(run.router.url.rpartition(":")[2])
        assert run.router.url.startswith("https://")
        assert b"first" in await served_certificate(port)
        cert.write_bytes(certificate("second"))
        run.router.process.send_signal(signal.SIGHUP)

        async def is_new():
            return b"second" in await served_certificate(port)

        await until(is_new)
        connector = aiohttp.UnixConnector(str(unix))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://x/healthz") as response,
        ):
            assert response.status == 200


async def served_certificate(port):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return bytes(found)


async def _is(claim):
    return claim
