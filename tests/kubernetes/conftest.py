"""A control plane for all tests of this folder that look at one."""

import pytest

from tests.support.control_plane import ControlPlane, Pods, binaries, control_plane

ROUTER = "system:serviceaccount:llm:router"


@pytest.fixture(scope="session")
def started(tmp_path_factory):
    if binaries() is None:
        pytest.skip("needs kube-apiserver and etcd (KUBE_BIN; make test-kubernetes)")
    with control_plane(tmp_path_factory.mktemp("kube"), ROUTER) as built:
        yield built


@pytest.fixture
async def plane(started: ControlPlane):
    await started.ready()
    return started


@pytest.fixture
async def pods(plane, request):
    """Those of a namespace of this test's own."""
    admin = await plane.api_client()
    async with admin:
        built = Pods(admin, f"t-{abs(hash(request.node.name)) % 10**9}")
        await built.open()
        yield built
