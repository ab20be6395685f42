"""PodMigrationJobs with a real API server, by the permissions in deploy/chart/rbac alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.errors import ControlPlaneError
from pipeline.local.control_plane import ControlPlane
from pipeline.processors.eviction.migration_job_object import DEFINITION
from tests.cluster.objects import (
    Object,
    apply,
    assert_forbidden,
    define,
    items,
    named,
    service_account,
)
from tests.cluster.test_evictor import STOP, World, deployed, relief_plan, world
from tests.crds import path_of
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(600)]
__all__ = ["deployed", "world"]  # fixtures

JOBS = "deploy/chart/rbac/evictor-migration-jobs.yaml"


@pytest.fixture
def account(plane: ControlPlane, world: World, project: Path) -> Iterator[Path]:
    """The service account of an evictor that may execute jobs, which `world` uses."""
    define(plane, str(path_of(DEFINITION)))
    user = service_account(plane, "evictor", project)
    plane.kubectl("apply", "-f", str(project / JOBS))
    kubernetes = msgspec.structs.replace(world.settings.kubernetes, kubeconfig=user)
    world.settings = msgspec.structs.replace(world.settings, kubernetes=kubernetes)
    yield user
    plane.kubectl("delete", "podmigrationjobs", "--all")


def job(name: str, pod: Object, **spec: Any) -> Object:
    reference = {"namespace": "default", "name": pod["metadata"]["name"]}
    values = {"mode": "EvictDirectly", "ttl": "5m", "podRef": reference} | spec
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "PodMigrationJob",
        "metadata": {"name": name}, "spec": values,
    }  # fmt: skip


def statuses(world: World) -> dict[str, Object]:
    return {
        name: item.get("status", {})
        for name, item in named(world.plane, "podmigrationjobs").items()
    }


def phase(world: World, name: str) -> str:
    status = statuses(world).get(name, {})
    return f"{status.get('phase')} {status.get('reason')}"


async def until_phase(world: World, name: str, start: str) -> None:
    """Return when phase and reason of a job start with this."""
    await until(lambda: phase(world, name).startswith(start), 60, lambda: statuses(world))


def job_events(world: World, name: str) -> list[str]:
    field = f"--field-selector=involvedObject.name={name}"
    return [event["reason"] for event in items(world.plane, "events", field)]


async def test_jobs_live_wait_are_aborted_and_time_out(
    world: World, deployed: list[Object], account: Path
) -> None:
    names = [pod["metadata"]["name"] for pod in deployed]
    with world.evictor() as evictor:
        await evictor.logs("PodMigrationJobs are read")
        apply(world.plane, job("first", deployed[0]))
        await until_phase(world, "first", "Succeeded None")
        assert names[0] not in world.pods()
        item = named(world.plane, "podmigrationjobs")["first"]
        assert item["spec"]["podRef"]["uid"] == deployed[0]["metadata"]["uid"]
        (condition,) = item["status"]["conditions"]
        assert (condition["type"], condition["status"]) == ("Eviction", "True")
        await until(lambda: "Complete" in job_events(world, "first"), 60)
        assert "EvictComplete" in job_events(world, "first")
        # One of three may move until its replacement is Ready, and one in five minutes.
        apply(world.plane, job("aborted", deployed[1]), job("late", deployed[2], ttl="12s"))
        await until_phase(world, "aborted", "Pending ")
        world.plane.kubectl("delete", "podmigrationjob", "aborted")
        await until_phase(world, "late", "Failed Timeout")
        assert "Deployment/default/relieved" in statuses(world)["late"]["message"]
        apply(world.plane, job("paused", deployed[1], paused=True))
        apply(world.plane, job("reserve", deployed[2], mode="ReservationFirst"))
        await until_phase(world, "reserve", "Failed FailedCreateReservation")
        await until(lambda: "FailedCreateReservation" in job_events(world, "reserve"), 60)
        assert phase(world, "paused") == "None None"
        assert evictor.stop() == 0
    assert {*names[1:]} < world.pods()
    assert "orbidden" not in evictor.log.read_text()


async def test_evictions_by_plans_are_reported_also_after_a_restart(
    world: World, deployed: list[Object], account: Path
) -> None:
    with world.evictor() as evictor:
        await evictor.logs("PodMigrationJobs are read")
        await relief_plan(world, deployed[0])
        await until(lambda: any(statuses(world).values()), 60)
        evictor.kill()
    with world.evictor():
        await until(lambda: _phases(world) == ["Succeeded"], 60)
    (item,) = items(world.plane, "podmigrationjobs")
    assert item["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "springtide"}
    assert item["spec"]["podRef"]["uid"] == deployed[0]["metadata"]["uid"]
    assert [*await world.outcomes()].count("intended") == 1


def _phases(world: World) -> list[str]:
    return [status.get("phase", "") for status in statuses(world).values()]


@pytest.mark.parametrize("mode", ["observe", "recommend"])
async def test_other_modes_leave_jobs_as_they_are(
    world: World, deployed: list[Object], account: Path, mode: str
) -> None:
    before = world.pods()
    with world.evictor(mode):
        apply(world.plane, job("job", deployed[0]))
        await until(world.outcomes, 60)
    assert await world.outcomes() == ["observed" if mode == "observe" else "recommended"]
    assert (world.pods(), statuses(world)) == (before, {"job": {}})


async def test_jobs_wait_while_the_kill_switch_is_set(
    world: World, deployed: list[Object], account: Path
) -> None:
    before = world.pods()
    world.plane.kubectl("create", *STOP)
    with world.evictor():
        apply(world.plane, job("job", deployed[0]))
        await until_phase(world, "job", "Pending Stopped")
        assert "evictions are stopped" in statuses(world)["job"]["message"]
        assert world.pods() == before
        world.plane.kubectl("delete", *STOP)
        await until_phase(world, "job", "Succeeded None")


async def test_a_job_that_names_no_pod_fails_and_holds_up_no_other(
    world: World, deployed: list[Object], account: Path
) -> None:
    other = "a/log", "..", f"{deployed[0]['metadata']['name']}/proxy/x"
    documents = [job(f"a-{n}", {"metadata": {"name": name}}) for n, name in enumerate(other)]
    apply(world.plane, *documents)
    with world.evictor() as evictor:
        apply(world.plane, job("job", deployed[0]))
        await until_phase(world, "job", "Succeeded None")
        for number in range(len(other)):
            await until_phase(world, f"a-{number}", "Failed InvalidPodRef")
    assert "orbidden" not in evictor.log.read_text()


async def test_without_permissions_an_evictor_leaves_jobs_alone_and_works(
    world: World, deployed: list[Object], account: Path, project: Path
) -> None:
    world.plane.kubectl("delete", "-f", str(project / JOBS))
    assert_forbidden(world.plane, account, "get podmigrationjobs", "delete pod x")
    apply(world.plane, job("job", deployed[1]))
    with world.evictor() as evictor:
        await evictor.logs("no PodMigrationJobs are read or written")
        await relief_plan(world, deployed[0])
        await until(lambda: deployed[0]["metadata"]["name"] not in world.pods(), 60)
    assert statuses(world) == {"job": {}}


# -- the definition


def test_an_object_of_koordinator_is_accepted_unchanged_and_printed(
    plane: ControlPlane, account: Path
) -> None:
    spec = {
        "paused": True, "ttl": "5m0s", "mode": "ReservationFirst",
        "podRef": {"namespace": "default", "name": "a", "uid": "1"},
        "reservationOptions": {
            "reservationRef": {"name": "r", "kind": "Reservation"},
            "template": {"spec": {"allocateOnce": True, "template": {"spec": {"x": [1]}}}},
        },
        "deleteOptions": {"gracePeriodSeconds": 60, "propagationPolicy": "Background"},
    }  # fmt: skip
    status: dict[str, Any] = {
        "phase": "Running", "status": "ReservationScheduled", "nodeName": "n",
        "message": "m", "podRef": {"namespace": "default", "name": "b"},
        "conditions": [
            {"type": "ReservationScheduled", "status": "True", "lastProbeTime": None,
             "lastTransitionTime": "2026-01-02T03:04:05Z"},
        ],
    }  # fmt: skip
    document = job("theirs", {"metadata": {"name": "a"}}) | {"spec": spec}
    apply(plane, document)
    patch = json.dumps({"status": status})
    plane.kubectl("patch", "pmj", "theirs", "--subresource=status", "--type=merge", "-p", patch)
    item = named(plane, "pmj")["theirs"]
    del status["conditions"][0]["lastProbeTime"]
    item["status"]["conditions"][0].pop("lastProbeTime", None)
    assert (item["spec"], item["status"]) == (spec, status)
    header, row = plane.kubectl("get", "pmj", "theirs").splitlines()
    assert header.split() == [
        "NAME", "PHASE", "STATUS", "REASON", "PODNAMESPACE", "POD", "AGE",
    ]  # fmt: skip
    assert row.split()[1:3] == ["Running", "ReservationScheduled"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"podRef": None}, "podRef: Required value"),
        ({"ttl": 300}, "must be of type string"),
        ({"deleteOptions": {"gracePeriodSeconds": -1}}, "greater than or equal to 0"),
        ({"podref": {}}, "unknown field"),
    ],
)
def test_an_invalid_job_is_refused(
    plane: ControlPlane, account: Path, changes: dict[str, Any], says: str
) -> None:
    document = job("invalid", {"metadata": {"name": "a"}}, **changes)
    spec = {key: value for key, value in document["spec"].items() if value is not None}
    text = json.dumps(document | {"spec": spec})
    with pytest.raises(ControlPlaneError, match=says):
        plane.kubectl("create", "-f", "-", stdin=text)
