"""An evictor and the PodMigrationJobs of a simulated cluster."""

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any, cast

import msgspec

from actuators.eviction.departures import watch_departures
from actuators.eviction.eviction_gate import EvictionGate, Mode
from actuators.eviction.eviction_records import ObservedActions
from actuators.eviction.migration_jobs import MigrationJobs
from actuators.eviction.plan_worker import PlanWorker
from actuators.eviction.received_plans import receive
from actuators.rate_limit import RateLimit
from pipeline.clock import ManualClock
from pipeline.errors import ConflictError, NotFoundError
from pipeline.kube.api_client import Api
from pipeline.kube.list_watch import Began, Changed, Complete, Page
from pipeline.processors.eviction.migration_job_object import PATH
from pipeline.processors.eviction.migration_policy import MigrationPolicy, Protections
from pipeline.tasks import cancel_tasks
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod
from tests.actuators.fake_api import merged
from tests.actuators.simulated_cluster import STOP, SimulatedCluster, SimulatedPod

Object = dict[str, Any]
Tell = Callable[[Object, bool], None]


class ClusterWithJobs(SimulatedCluster):
    """A cluster that serves PodMigrationJobs, and tells each change of one to `tell`."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock, Random(1))
        self.jobs: dict[str, Object] = {}
        self.deleted: list[str] = []
        self.writes: list[str] = []
        self.job_failure: Exception | None = None
        self.failing_jobs: dict[str, Exception] = {}
        self.tell: Tell = lambda job, is_deleted: None
        self._version = 0

    def put(self, name: str, changes: Object) -> Object:
        """Create a job, or merge changes into one; null removes a field."""
        before = self.jobs.get(name)
        if before is None:
            created = format_time(self.server_now())
            metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": created}
            before = {"metadata": metadata}
        job = merged(before, changes)
        self._version += 1
        job["metadata"]["resourceVersion"] = str(self._version)
        self.jobs[name] = job
        self.tell(job, False)
        return job

    def remove(self, name: str) -> None:
        self.tell(self.jobs.pop(name), True)

    def _answer(self, method: str, path: str, params: Any, body: Any) -> Any:
        if not path.startswith(PATH):
            return super()._answer(method, path, params, body)
        if method != "GET":
            self.writes.append(f"{method} {path.removeprefix(PATH)}")
            if self.job_failure is not None:
                raise self.job_failure
        name = path.removeprefix(PATH).strip("/").removesuffix("/status")
        if method == "POST":
            name = body["metadata"]["name"]
            if name in self.jobs:
                raise ConflictError("409 it exists")
            return self.put(name, body)
        if method != "GET" and name in self.failing_jobs:
            raise self.failing_jobs[name]
        if name not in self.jobs:
            raise NotFoundError("404 no such job", reason="NotFound")
        job = self.jobs[name]
        if method == "GET":
            return job
        expected = body["preconditions"] if method == "DELETE" else body["metadata"]
        if expected["resourceVersion"] != job["metadata"]["resourceVersion"]:
            raise ConflictError("409 it has changed")
        if method == "DELETE":
            self.deleted.append(name)
            self.remove(name)
            return {}
        # Status and the rest are written each by its own way.
        part = "status" if path.endswith("/status") else "spec"
        return self.put(name, {part: body[part]})


class Log(list[ActionRecord]):
    """Actions in the order in which they were written; with `hangs` the writer gets no answer."""

    hangs = False

    def put(self, action: ActionRecord) -> None:
        self.append(action)

    async def write(self, action: ActionRecord) -> None:
        self.append(action)
        if self.hangs:
            await asyncio.Event().wait()


class World:
    """An evictor and the jobs of its cluster. Use it inside of a running loop."""

    def __init__(self, mode: Mode = "act", policy: MigrationPolicy | None = None) -> None:
        self.clock = ManualClock()
        self.cluster = ClusterWithJobs(self.clock)
        self.log = Log()
        self.policy = policy or MigrationPolicy()
        self.start(mode)

    def start(self, mode: Mode = "act") -> None:
        """Start an evictor that knows nothing but the actions and the jobs of former ones."""
        actions = ObservedActions(self.log, lambda action: self.jobs.note(action))
        self.gate = EvictionGate(
            cast(Api, self.cluster), STOP, RateLimit(1.0, self.clock), self.clock, actions,
            lambda: True, self.policy,
        )  # fmt: skip
        self.worker = PlanWorker(self.gate, mode)
        self.jobs = MigrationJobs(self.gate, self.worker.relief, mode)
        for action in self.log:
            self.worker.learn(action)
            self.jobs.learn(action)
        watch = self.jobs.watch
        watch.deliver(Began())
        watch.deliver(Page([_raw(job) for job in self.cluster.jobs.values()]))
        watch.deliver(Complete())
        self.cluster.tell = lambda job, gone: watch.deliver(Changed(_raw(job), gone))

    async def run(self, seconds: float = 10.0) -> None:
        async def work() -> None:
            while True:
                await self.jobs.submit()
                await self.worker.step()
                await self.clock.sleep(0.5)

        tasks = [asyncio.create_task(task) for task in (work(), self.jobs.look_forever())]
        tasks.append(asyncio.create_task(watch_departures(self.gate)))
        await self.clock.advance(seconds)
        assert not [task.exception() for task in tasks if task.done()]
        await cancel_tasks(*tasks)

    def ask(self, name: str, pod: SimulatedPod | None, **spec: Any) -> None:
        """A user creates a job."""
        reference = {"namespace": "d", "name": pod.name if pod is not None else "absent"}
        values = {"mode": "EvictDirectly", "ttl": "5m", "podRef": reference} | spec
        self.cluster.put(name, {"spec": values})

    def status(self, name: str) -> Object:
        status: Object = self.cluster.jobs[name].get("status", {})
        return status

    def phase(self, name: str) -> str:
        status = self.status(name)
        return f"{status.get('phase')} {status.get('reason')}"

    @property
    def evicted(self) -> list[str]:
        return [eviction.pod.uid for eviction in self.cluster.accepted]

    @property
    def outcomes(self) -> list[str]:
        return [action.outcome for action in self.log]

    async def relieve(self, *pods: SimulatedPod) -> EvictionPlanRecord:
        now = self.clock.now()
        plan = EvictionPlanRecord(
            node=pods[0].node, id=f"plan of {pods[0].uid}", at=format_time(now),
            valid_until=format_time(now + 60.0), planner="planner", strategy="LowNodeLoad",
            why="cpu 91% of 75%",
            pods=tuple(LeavingPod(uid=pod.uid, pod_class="batch") for pod in pods),
        )  # fmt: skip
        await self.worker.start(receive(plan, self.clock))
        return plan


def _raw(job: Object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(job).encode())


BARE = MigrationPolicy(protections=Protections(evict_all_bare_pods=True))
