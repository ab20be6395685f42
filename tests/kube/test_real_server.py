"""Requests, list-watch and leases against the real API server, and with faults in between."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from pipeline.clock import SystemClock
from pipeline.errors import ConflictError, ForbiddenError, NotFoundError
from pipeline.kube.api_client import Api, open_api
from pipeline.kube.lease import Lease, LeaseTerms
from pipeline.kube.list_watch import Began, Changed, Complete, Page, follow
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KubernetesSettings
from pipeline.tasks import cancel_tasks
from pipeline.times import parse_time
from tests.kube.fault_proxy import FaultProxy, fault_proxy
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

MAPS = "/api/v1/namespaces/default/configmaps"


def as_admin(plane: ControlPlane, server: str | None = None) -> KubernetesSettings:
    return KubernetesSettings(kubeconfig=plane.kubeconfig(server=server))


@pytest.fixture
async def api(plane: ControlPlane) -> AsyncIterator[Api]:
    async with open_api(as_admin(plane), SystemClock()) as api:
        yield api


@pytest.fixture
async def proxy(plane: ControlPlane) -> AsyncIterator[FaultProxy]:
    async with fault_proxy(plane, seed=1) as proxy:
        yield proxy


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_an_object_is_created_changed_and_deleted(api: Api) -> None:
    created = await api.create(MAPS, config_map("one", a="1"))
    created_at = parse_time(created["metadata"]["creationTimestamp"])
    assert api.server_now() == pytest.approx(created_at, abs=10)
    with pytest.raises(ConflictError, match="already exists"):
        await api.create(MAPS, config_map("one"))
    patched = await api.patch(f"{MAPS}/one", {"data": {"a": None, "b": "2"}})
    assert patched["data"] == {"b": "2"}
    with pytest.raises(ConflictError, match="modified"):
        await api.replace(f"{MAPS}/one", {**created, "data": {"c": "3"}})
    stale = {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}, "data": {}}
    with pytest.raises(ConflictError):
        await api.patch(f"{MAPS}/one", stale)
    await api.delete(f"{MAPS}/one")
    await api.delete(f"{MAPS}/one")
    with pytest.raises(NotFoundError, match="one"):
        await api.get(f"{MAPS}/one")


async def test_writes_are_managed_by_the_name_of_the_role(plane: ControlPlane) -> None:
    async with open_api(as_admin(plane), SystemClock(), name="springtide-actuator") as api:
        await api.create(MAPS, config_map("managed", a="0"))
        await api.patch(f"{MAPS}/managed", {"data": {"a": "1"}})
        changed = await api.get(f"{MAPS}/managed")
        await api.replace(f"{MAPS}/managed", changed | {"data": {"b": "2"}})
        fields = (await api.get(f"{MAPS}/managed"))["metadata"]["managedFields"]
        await api.delete(f"{MAPS}/managed")
    assert {entry["manager"] for entry in fields} == {"springtide-actuator"}


async def test_a_forbidden_request_names_the_missing_permission(plane: ControlPlane) -> None:
    settings = KubernetesSettings(kubeconfig=plane.kubeconfig("nobody"))
    async with open_api(settings, SystemClock()) as api:
        with pytest.raises(ForbiddenError, match='"nobody" cannot list resource "pods"') as raised:
            await api.get("/api/v1/pods")
    assert "deploy/chart/rbac" in str(raised.value)


class Mirror:
    """The data of ConfigMaps by name, as a follower of a list-watch knows them."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.lists = 0
        self._seen: set[str] = set()

    async def run(self, api: Api, page: int = 3) -> None:
        async for event in follow(api, MAPS, page=page):
            match event:
                case Began():
                    self._seen = set()
                case Page(objects):
                    self._seen.update(map(self._read, objects))
                case Complete():
                    self.lists += 1
                    self.known = {n: d for n, d in self.known.items() if n in self._seen}
                case Changed(encoded, is_deleted):
                    name = self._read(encoded)
                    self._seen.add(name)
                    if is_deleted:
                        del self.known[name]

    def _read(self, raw: msgspec.Raw) -> str:
        document = msgspec.json.decode(raw)
        name: str = document["metadata"]["name"]
        self.known[name] = document.get("data")
        return name


async def data_by_name(api: Api) -> dict[str, Any]:
    items = (await api.get(MAPS))["items"]
    return {item["metadata"]["name"]: item.get("data") for item in items}


async def test_a_watch_has_all_objects_in_pages_and_in_changes(api: Api) -> None:
    for i in range(8):
        await api.create(MAPS, config_map(f"m{i}", i=str(i)))
    mirror = Mirror()
    following = asyncio.create_task(mirror.run(api))
    await until(lambda: mirror.lists)
    assert mirror.known == await data_by_name(api)
    await api.delete(f"{MAPS}/m3")
    await api.patch(f"{MAPS}/m4", {"data": {"i": "new"}})
    await api.create(MAPS, config_map("m9"))
    expected = await data_by_name(api)
    await until(lambda: mirror.known == expected)
    assert mirror.lists == 1
    await cancel_tasks(following)
    for i in (0, 1, 2, 4, 5, 6, 7, 9):
        await api.delete(f"{MAPS}/m{i}")


async def test_faults_in_between_do_not_change_the_result(
    plane: ControlPlane, api: Api, proxy: FaultProxy
) -> None:
    mirrors = [Mirror(), Mirror()]
    async with open_api(as_admin(plane, proxy.url), SystemClock()) as faulty:
        following = [asyncio.create_task(mirror.run(faulty)) for mirror in mirrors]
        for i in itertools.count():
            if i >= 120 and proxy.kinds >= {"410", "429", "500"}:
                break
            name = f"f{i % 17}"
            with contextlib.suppress(ConflictError):
                await api.create(MAPS, config_map(name))
            await api.patch(f"{MAPS}/{name}", {"data": {"i": str(i)}})
            if i % 5 == 0:
                await api.delete(f"{MAPS}/{name}")
            if i == 60:
                # All watches break, and miss some changes.
                plane.api.kill()
                plane.api.start()
                plane.wait_ready(time.monotonic() + 120)
            await asyncio.sleep(0.02)
        proxy.is_fair = True
        expected = await data_by_name(api)
        for mirror in mirrors:
            await until(lambda mirror=mirror: mirror.known == expected)
        await cancel_tasks(*following)


async def test_one_process_leads_and_the_next_takes_over(api: Api) -> None:
    # Longer than the test takes: only a released lease is taken over.
    terms = LeaseTerms(duration_seconds=240.0, renew_within_seconds=120.0, retry_seconds=0.3)
    led: list[str] = []
    stop = asyncio.Event()

    def start(name: str, *, ends: bool) -> "asyncio.Task[None]":
        async def work() -> None:
            led.append(name)
            await (stop.wait() if ends else asyncio.sleep(3600))

        return asyncio.create_task(Lease(api, "springtide-system", "try", name, terms).lead(work))

    first = start("first", ends=False)
    await until(lambda: led == ["first"])
    second = start("second", ends=True)

    async def spec() -> dict[str, Any]:
        path = "/apis/coordination.k8s.io/v1/namespaces/springtide-system/leases/try"
        found: dict[str, Any] = (await api.get(path))["spec"]
        return found

    renewed = (await spec())["renewTime"]

    async def is_renewed() -> bool:
        return bool((await spec())["renewTime"] != renewed)

    await until(is_renewed)
    await asyncio.sleep(1.0)
    assert led == ["first"]
    await cancel_tasks(first)
    await until(lambda: led == ["first", "second"], 60)
    stop.set()
    await second
    last = await spec()
    assert last["holderIdentity"] == ""
    assert last["leaseTransitions"] == 2


async def test_a_leader_that_cannot_renew_stops_before_another_starts(
    plane: ControlPlane, api: Api, proxy: FaultProxy
) -> None:
    terms = LeaseTerms(duration_seconds=9.0, renew_within_seconds=5.0, retry_seconds=0.3)
    proxy.is_fair = True
    working: set[str] = set()
    have_overlapped = False

    def start(api: Api, name: str) -> "asyncio.Task[None]":
        async def work() -> None:
            nonlocal have_overlapped
            working.add(name)
            have_overlapped = have_overlapped or len(working) > 1
            try:
                await asyncio.sleep(3600)
            finally:
                working.discard(name)

        return asyncio.create_task(Lease(api, "springtide-system", "cut", name, terms).lead(work))

    async with open_api(as_admin(plane, proxy.url), SystemClock()) as faulty:
        first = start(faulty, "first")
        await until(lambda: working == {"first"})
        second = start(api, "second")
        proxy.is_fair, proxy.share = False, 1.0
        await until(lambda: working == {"second"})
        await cancel_tasks(first, second)
    assert not have_overlapped
