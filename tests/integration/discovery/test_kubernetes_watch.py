"""Discovery by the official client against an API server that goes wrong in every known way."""

from contextlib import asynccontextmanager

from kubernetes_asyncio import client

from router.replicas import kube_api
from router.replicas.kube_objects import replicas_of_pod
from router.replicas.kubernetes import KubernetesDiscovery
from router.replicas.ports import Ports
from tests.support import kube
from tests.support.discoveries import followed, kube_world, settings_of
from tests.support.processes import until

A, B, C = (f"http://10.0.0.{n}:8000" for n in (1, 2, 3))


@asynccontextmanager
async def api_of(url):
    async with client.ApiClient(settings_of(url)) as api:
        yield api


def by_pods(api, *, relist_s=20.0, select=None, ports=None):
    source = kube_api.KubernetesApi(
        client.CoreV1Api(api).list_namespaced_pod, "llm",
        select or kube_api.constant("app=vllm"), list_timeout_s=0.3,
    )  # fmt: skip
    return KubernetesDiscovery(
        source, lambda t: replicas_of_pod(t, ports or Ports()), relist_s=relist_s
    )


async def two_pods(fake):
    await fake.put("pods", kube.pod("a", "10.0.0.1"))
    await fake.put("pods", kube.pod("b", "10.0.0.2"))


async def watching(fake):
    async def holds():
        return fake.watches > 0

    await until(holds)


async def test_a_delete_that_a_silent_watch_never_told_is_put_right_by_the_next_list():
    fake = kube.FakeApi()
    async with kube.serving(fake) as url, api_of(url) as api:
        await two_pods(fake)
        async with followed(by_pods(api, relist_s=1.0)) as seen:
            await seen.reach(A, B)
            await watching(fake)
            fake.is_silent = True
            await fake.delete("pods", "b")
            await seen.reach(A, within_s=4.0)


async def test_a_version_that_is_gone_is_listed_anew_at_once():
    fake = kube.FakeApi()
    async with kube.serving(fake) as url, api_of(url) as api:
        await two_pods(fake)
        async with followed(by_pods(api)) as seen:
            await seen.reach(A, B)
            await watching(fake)
            fake.is_silent = True
            await fake.delete("pods", "b")
            fake.compact()
            fake.is_silent = False
            await seen.reach(A, within_s=2.0)
            assert fake.lists == 2


async def test_a_server_that_says_gone_every_time_is_not_flooded():
    fake = kube.FakeApi()
    fake.oldest = 10**9
    async with kube.serving(fake) as url, api_of(url) as api:
        await two_pods(fake)
        async with followed(by_pods(api)) as seen:
            await seen.reach(A, B)

            async def four():
                return fake.lists == 4

            await until(four)
        assert [len(replicas) for replicas in seen.sets] == [2]


async def test_replicas_stay_while_the_api_server_is_down_and_follow_it_when_it_is_back():
    fake = kube.FakeApi()
    async with kube.serving(fake) as url:
        port = int(url.rpartition(":")[2])
        await two_pods(fake)
        api = client.ApiClient(settings_of(url))
        watching_it = followed(by_pods(api))
        seen = await watching_it.__aenter__()
        await seen.reach(A, B)
        await watching(fake)
    try:
        await fake.delete("pods", "b")
        await fake.put("pods", kube.pod("c", "10.0.0.3"))
        assert len(seen.sets) == 1
        async with kube.serving(fake, port):
            await seen.reach(A, C)
        assert all(seen.sets), "an empty set while the server was away"
    finally:
        await watching_it.__aexit__(None, None, None)
        await api.close()


async def test_replicas_stay_while_the_rights_are_lost():
    fake = kube.FakeApi()
    async with kube.serving(fake) as url, api_of(url) as api:
        await two_pods(fake)
        async with followed(by_pods(api, relist_s=1.0)) as seen:
            await seen.reach(A, B)
            await watching(fake)
            fake.is_silent = fake.is_forbidden = True
            await fake.delete("pods", "b")

            async def was_refused():
                return fake.refused > 1

            await until(was_refused)
            assert len(seen.sets) == 1
            fake.is_silent = fake.is_forbidden = False
            await seen.reach(A)


async def test_a_server_that_hangs_is_given_up_and_asked_again():
    fake = kube.FakeApi()
    async with kube.serving(fake) as url, api_of(url) as api:
        await two_pods(fake)
        fake.hangs = True
        async with followed(by_pods(api)) as seen:

            async def was_asked():
                return ("pods", "list") in fake.asked

            await until(was_asked)
            fake.hangs = False
            await seen.reach(A, B, within_s=4.0)


async def test_readiness_termination_and_labels_are_honoured_within_a_second():
    async with kube_world() as world:
        await two_pods(world.fake)
        async with followed(world.discovery) as seen:
            await seen.reach(A, B)
            await world.fake.put("pods", kube.pod("b", "10.0.0.2", ready=False))
            await seen.reach(A, within_s=1.0)
            await world.fake.put("pods", kube.pod("b", "10.0.0.2"))
            await seen.reach(A, B, within_s=1.0)
            ending = kube.pod("b", "10.0.0.2")
            ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            await world.fake.put("pods", ending)
            await seen.reach(A, within_s=1.0)
            await world.fake.put("pods", kube.pod("a", "10.0.0.1", labels={"app": "other"}))
            await seen.reach(within_s=1.0)
            await world.fake.put("pods", kube.pod("a", "10.0.0.1"))
            await seen.reach(A, within_s=1.0)


async def test_annotations_give_ports_and_a_bad_one_costs_only_its_pod():
    async with kube_world() as world:
        mine = {"warmgate/port": "9000", "warmgate/events-port": "5557", "warmgate/ranks": "2"}
        await world.fake.put("pods", kube.pod("a", "10.0.0.1", annotations=mine))
        await world.fake.put("pods", kube.pod("b", "fd00::2"))
        await world.fake.put("pods", kube.pod("c", "10.0.0.3", annotations={"warmgate/port": "x"}))
        async with followed(world.discovery) as seen:
            await seen.reach("http://10.0.0.1:9000", "http://[fd00::2]:8000")
            ranks = {r.id: (r.rank, r.events_url) for r in seen.sets[-1] if "9000" in r.url}
            assert ranks == {
                "a-dp0": (0, "tcp://10.0.0.1:5557"), "a-dp1": (1, "tcp://10.0.0.1:5558")
            }  # fmt: skip


async def test_an_inference_pool_selects_the_pods():
    fake = kube.FakeApi(pool_labels={"app": "vllm"})
    async with kube.serving(fake) as url, api_of(url) as api:
        await two_pods(fake)
        await fake.put("pods", kube.pod("c", "10.0.0.3", labels={"app": "other"}))
        select = kube_api.selector_of_pool(api, "llm", "pool")
        async with followed(by_pods(api, relist_s=1.0, select=select)) as seen:
            await seen.reach(A, B)
            fake.pool_labels = {"app": "other"}
            await seen.reach(C)


async def test_endpoints_that_end_or_are_not_ready_are_left_out_and_named_ports_win():
    async with kube_world(by_slices=True) as world:
        put = world.fake.put
        await put("endpointslices", kube.endpoint_slice("s1", "engines", ("a", "10.0.0.1")))
        ending = kube.endpoint_slice("s2", "engines", ("b", "10.0.0.2"), terminating=True)
        await put("endpointslices", ending)
        third = kube.endpoint_slice("s3", "engines", ("c", "10.0.0.3"))
        third["ports"] = [{"name": "http", "port": 9000}, {"name": "events", "port": 5557}]
        await put("endpointslices", third)
        await put("endpointslices", kube.endpoint_slice("s4", "others", ("d", "10.0.0.4")))
        async with followed(world.discovery) as seen:
            await seen.reach(A, "http://10.0.0.3:9000")
            events = {replica.id: replica.events_url for replica in seen.sets[-1]}
            assert events == {"a": None, "c": "tcp://10.0.0.3:5557"}


async def test_the_only_port_of_a_slice_is_where_it_serves():
    async with kube_world(by_slices=True) as world:
        thing = kube.endpoint_slice("s", "engines", ("a", "10.0.0.1"))
        thing["ports"] = [{"name": "", "port": 7000}]
        await world.fake.put("endpointslices", thing)
        async with followed(world.discovery) as seen:
            await seen.reach("http://10.0.0.1:7000")
