"""A threshold is lowered at the peak: from the configuration to evictions, role by role."""

import json
from typing import Any

from actuators.planner.relief_policy import relief_policy
from pipeline.kafka.partition_log import LogRecord
from pipeline.processors.descheduling.descheduler_config import Descheduling, read_configuration
from pipeline.processors.descheduling.hot_node_policies import with_hot_nodes
from pipeline.table.apply_records import apply, apply_pod_points
from pipeline.times import parse_time
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import Owner as Controller
from pipeline.topics.pods import PodRecord, pod_key
from pipeline.topics.registry import NODE_STATE, NODES, PODS, WINDOWS
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from tests.actuators.simulated_cluster import SimulatedPod
from tests.actuators.test_relief import World as Evictor
from tests.agents.fakes import MemoryBroker
from tests.agents.hot_logs import published_alerts
from tests.agents.owners import Owner
from tests.extender.relief_world import ReliefWorld
from tests.planner.test_relief_rounds import Planning

GIB = float(1 << 30)
WINDOW_MS = 30_000
CORES: dict[str, dict[str, float]] = {
    "hot": {"free": 0.3, "batch-low": 0.4, "batch-high": 0.4, "mid": 1.5, "prod": 4.4},
    "cool": {"other": 1.0},
}
"""Usage of each pod: 7 of 10 cores of the hot node."""
PRIORITIES = {"free": 3000, "batch-low": 5000, "batch-high": 5500, "mid": 7000, "prod": 9000}
MOST_WINDOWS = 12


def configuration(high: float) -> Descheduling:
    args = {
        "highThresholds": {"cpu": high}, "lowThresholds": {"cpu": 45}, "hysteresisPercent": 0,
        "usageAggregatedDuration": "5m",
    }  # fmt: skip
    text = json.dumps({
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
        "profiles": [{
            "name": "p", "pluginConfig": [{"name": "LowNodeLoad", "args": args}],
            "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
        }],
    })  # fmt: skip
    descheduling, problems = read_configuration(text)
    assert descheduling is not None
    assert not problems
    return descheduling


def pods() -> list[PodRecord]:
    return [
        PodRecord(
            node=node, uid=name, cgroup_uid=name, namespace="d", name=name, phase="Running",
            pod_class=name.partition("-")[0] if name in PRIORITIES else "prod",
            priority=PRIORITIES.get(name, 9000), owner=Controller(kind="ReplicaSet", name=name),
            requests=Resources(cpu_millicores=round(1000 * cores), memory_bytes=1 << 30),
            created_at="2023-11-01T00:00:00Z", scheduled_at="2023-11-01T00:00:00Z",
        )
        for node, of_node in CORES.items()
        for name, cores in of_node.items()
    ]  # fmt: skip


class Roles:
    """A watcher, a worker and a planner around one broker, in event time."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.end_ms, self._samples = 1_700_000_010_000, 0
        self.worker: Owner

    async def begin(self, high: float) -> "Roles":
        for pod in pods():
            self.broker.put("t.pods", 0, pod_key(pod.node, pod.uid), encode_json(pod))
        self._write_nodes(high)
        self.worker = await Owner(self.broker, "x").load()
        return self

    def _write_nodes(self, high: float) -> list[LogRecord]:
        room = Resources(cpu_millicores=10_000, memory_bytes=32 << 30)
        for name in CORES:
            record = with_hot_nodes(NodeRecord(node=name, allocatable=room), configuration(high))
            self.broker.put("t.nodes", 0, name.encode(), encode_json(record))
        return self.broker.records("t.nodes")[-len(CORES) :]

    def lower(self, high: float) -> None:
        """Another threshold: the watcher writes the nodes, and the worker reads them."""
        for record in self._write_nodes(high):
            self.worker.shard.join.cluster_state.apply_node(record)

    async def window(self) -> None:
        self.end_ms += WINDOW_MS
        await self.worker.shard.join.process([self._sample(name) for name in CORES])
        await self.worker.apply()

    def _sample(self, node: str) -> LogRecord:
        header = SampleHeader(
            node=node, machine_id="m", boot_id="b", epoch=1, sequence=self._samples,
            window_start_ms=self.end_ms - WINDOW_MS, window_end_ms=self.end_ms,
        )  # fmt: skip
        usage = CORES[node]
        rows: list[dict[str, Any]] = [
            {"kind": "node", "id": "", "coverage": 1.0, "cpu_cores_avg": sum(usage.values()),
             "memory_bytes_avg": GIB * len(usage)},
            *({"kind": "pod", "id": name, "coverage": 1.0, "cpu_cores_avg": cores,
               "memory_bytes_avg": GIB} for name, cores in usage.items()),
        ]  # fmt: skip
        value = encode_samples(SampleBatch(header, rows))
        self._samples += 1
        return LogRecord(0, self._samples - 1, node.encode(), value, self.end_ms)

    async def planned(self, high: float) -> Planning:
        """A planner of this configuration after it has read the topics, and one step of it."""
        world = ReliefWorld()
        for topic in (NODES, PODS, NODE_STATE):
            for record in self.broker.records(f"t.{topic.name}"):
                apply(world.table, topic, record.key, record.value)
        for record in self.broker.records("t.windows"):
            apply_pod_points(world.table, WINDOWS, record.key, record.value)
        world.records = pods()
        planning = Planning(world, relief_policy(configuration(high)))
        planning.clock.jump(self.end_ms / 1000 + 1 - planning.clock.now())
        await planning.rounds.step()
        return planning


async def test_best_effort_pods_leave_when_a_threshold_is_lowered_at_the_peak() -> None:
    roles = await Roles().begin(high=80)
    for _ in range(MOST_WINDOWS):
        await roles.window()
    assert not published_alerts(roles.broker)
    assert not (await roles.planned(high=80)).plans
    roles.lower(high=60)
    opened_after = 0
    while not published_alerts(roles.broker):
        assert opened_after < MOST_WINDOWS
        assert not (await roles.planned(high=60)).plans
        await roles.window()
        opened_after += 1
    assert opened_after == 5  # consecutiveAbnormalities
    (plan,) = (await roles.planned(high=60)).plans
    # 7.0 of 10 cores, and 6.0 are allowed: together the pods of Free and Batch just suffice.
    assert [pod.name for pod in plan.pods] == ["free", "batch-low", "batch-high"]
    assert {pod.target for pod in plan.pods} == {"cool"}
    assert (plan.node, plan.strategy) == ("hot", "LowNodeLoad")
    assert plan.why.endswith(
        "node usage of cpu is 70.00%, above 60.00%; 3 pods leave, then cpu 59.0%, "
        "memory 6.2%, relieved"
    )


async def test_the_evictor_evicts_them_in_the_same_order() -> None:
    roles = await Roles().begin(high=60)
    for _ in range(MOST_WINDOWS):
        await roles.window()
    (plan,) = (await roles.planned(high=60)).plans
    evictor = Evictor()
    evictor.clock.jump(parse_time(plan.at) - evictor.clock.now())
    for name in CORES["hot"]:
        evictor.cluster.replicas[name] = 3
        evictor.cluster.pods[name] = SimulatedPod(
            name, name, "d", "hot", name, changes={"priority": PRIORITIES[name]}
        )
        for _ in range(2):
            evictor.cluster.add_pod("cool", deployment=name)
    outcomes = await evictor.run(plan, seconds=120.0)
    assert outcomes.count("done") == 3
    assert evictor.evicted == ["free", "batch-low", "batch-high"]
