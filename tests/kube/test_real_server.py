"""Requests, list-watch and leases against the real API server, and with faults in between."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.clock import SystemClock
from pipeline.errors import ConflictError, ForbiddenError, NotFoundError, SettingsError
from pipeline.kube.api_client import Api, open_api
from pipeline.kube.lease import Lease, LeaseTerms
from pipeline.kube.list_watch import Began, Changed, Complete, Page, follow
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KubernetesSettings
from pipeline.tasks import cancel_tasks
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
    config = json.loads(plane.kubeconfig().read_text())
    user = config["users"][0]["user"]
    async with fault_proxy(
        plane.server, Path(user["client-certificate"]), Path(user["client-key"]),
        plane.certificate_authority, seed=1,
    ) as proxy:  # fmt: skip
        yield proxy


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_an_object_is_created_changed_and_deleted(api: Api) -> None:
    made = await api.create(MAPS, config_map("one", a="1"))
    with pytest.raises(ConflictError, match="already exists"):
        await api.create(MAPS, config_map("one"))
    found = await api.patch(f"{MAPS}/one", {"data": {"a": None, "b": "2"}})
    assert found["data"] == {"b": "2"}
    with pytest.raises(ConflictError, match="modified"):
        await api.replace(f"{MAPS}/one", {**made, "data": {"c": "3"}})
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {}}
    with pytest.raises(ConflictError):
        await api.patch(f"{MAPS}/one", stale)
    await api.delete(f"{MAPS}/one")
    await api.delete(f"{MAPS}/one")
    with pytest.raises(NotFoundError, match="one"):
        await api.get(f"{MAPS}/one")


async def test_a_forbidden_request_names_the_missing_right(plane: ControlPlane) -> None:
    settings = KubernetesSettings(kubeconfig=plane.kubeconfig("nobody"))
    async with open_api(settings, SystemClock()) as api:
        with pytest.raises(ForbiddenError, match='"nobody" cannot list resource "pods"') as raised:
            await api.get("/api/v1/pods")
    assert "deploy/rbac" in str(raised.value)


async def test_without_a_server_the_error_says_what_to_set(tmp_path: Path) -> None:
    missing = KubernetesSettings(kubeconfig=tmp_path / "none")
    with pytest.raises(SettingsError, match=r"kubernetes\.kubeconfig"):
        async with open_api(missing, SystemClock()):
            pass


class Mirror:
    """What one knows who follows: the names of ConfigMaps and their data."""

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
                    for of in map(self._read, objects):
                        self._seen.add(of)
                case Complete():
                    self.lists += 1
                    self.known = {n: d for n, d in self.known.items() if n in self._seen}
                case Changed(of, is_gone):
                    name = self._read(of)
                    self._seen.add(name)
                    if is_gone:
                        del self.known[name]

    def _read(self, raw: msgspec.Raw) -> str:
        of = msgspec.json.decode(raw)
        name: str = of["metadata"]["name"]
        self.known[name] = of.get("data")
        return name


async def wanted(api: Api) -> dict[str, Any]:
    found = await api.get(MAPS)
    return {of["metadata"]["name"]: of.get("data") for of in found["items"]}


async def test_a_watch_has_all_objects_in_pages_and_in_changes(api: Api) -> None:
    for i in range(8):
        await api.create(MAPS, config_map(f"m{i}", i=str(i)))
    mirror = Mirror()
    following = asyncio.create_task(mirror.run(api))
    await until(lambda: mirror.lists)
    assert mirror.known == await wanted(api)
    await api.delete(f"{MAPS}/m3")
    await api.patch(f"{MAPS}/m4", {"data": {"i": "new"}})
    await api.create(MAPS, config_map("m9"))
    there = await wanted(api)
    await until(lambda: mirror.known == there)
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
                # Everything that is watched is cut off, and some of it lost meanwhile.
                plane.api.kill()
                plane.api.start()
                plane.wait_ready(time.monotonic() + 60)
            await asyncio.sleep(0.02)
        proxy.is_fair = True
        there = await wanted(api)
        for mirror in mirrors:
            await until(lambda mirror=mirror: mirror.known == there)
        await cancel_tasks(*following)


async def test_one_process_leads_and_the_next_takes_over(api: Api) -> None:
    terms = LeaseTerms(duration_seconds=3.0, renew_within_seconds=2.0, retry_seconds=0.3)
    led: list[str] = []
    stop = asyncio.Event()

    def one(name: str, *, ends: bool) -> "asyncio.Task[None]":
        async def work() -> None:
            led.append(name)
            await (stop.wait() if ends else asyncio.sleep(3600))

        return asyncio.create_task(Lease(api, "springtide-system", "try", name, terms).lead(work))

    first = one("first", ends=False)
    await until(lambda: led == ["first"])
    second = one("second", ends=True)
    await asyncio.sleep(4.0)
    assert led == ["first"]
    await cancel_tasks(first)
    await until(lambda: led == ["first", "second"], 2.0)
    stop.set()
    await second
    spec = (await api.get("/apis/coordination.k8s.io/v1/namespaces/springtide-system/leases/try"))[
        "spec"
    ]
    assert spec["holderIdentity"] == ""
    assert spec["leaseTransitions"] == 2


async def test_a_leader_that_cannot_renew_stops_before_another_starts(
    plane: ControlPlane, api: Api, proxy: FaultProxy
) -> None:
    terms = LeaseTerms(duration_seconds=3.0, renew_within_seconds=2.0, retry_seconds=0.3)
    proxy.is_fair = True
    at_work: set[str] = set()
    both = False

    def one(api: Api, name: str) -> "asyncio.Task[None]":
        async def work() -> None:
            nonlocal both
            at_work.add(name)
            both = both or len(at_work) > 1
            try:
                await asyncio.sleep(3600)
            finally:
                at_work.discard(name)

        return asyncio.create_task(Lease(api, "springtide-system", "cut", name, terms).lead(work))

    async with open_api(as_admin(plane, proxy.url), SystemClock()) as faulty:
        first = one(faulty, "first")
        await until(lambda: at_work == {"first"})
        second = one(api, "second")
        proxy.is_fair, proxy.share = False, 1.0
        await until(lambda: at_work == {"second"})
        await cancel_tasks(first, second)
    assert not both
