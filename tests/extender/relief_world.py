"""A state table with hot and cool nodes, pods on them and the usage of each."""

from typing import Any

import msgspec

from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions
from pipeline.extender.plan_documents import ReliefPlan
from pipeline.extender.relief_planning import ReliefPlanning
from pipeline.processors.descheduling.descheduler_config import Descheduling, read_tree
from pipeline.settings import ExtenderSettings
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.times import format_time
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.pods import Owner, PodRecord
from pipeline.topics.resource_amounts import Resources
from tests.processors.joined import NODE_ROW, header, joined, known_pod, logged, pod_row
from tests.processors.joined import view_of as view
from tests.table.records import GIB, NOW, any_pod, node_state, running

# Without hysteresis a node is relieved at its threshold.
POLICY = HotNodePolicy(
    high_percent={"cpu": 70.0}, low_percent={"cpu": 45.0}, hysteresis_percent=0.0
)
ALERT = OpenAlert(
    rule="node_cpu", severity="warning", since="2023-11-14T22:00:00Z", usage_percent=75.0,
    threshold_percent=70.0,
)  # fmt: skip
ROOM = Resources(cpu_millicores=16_000, memory_bytes=64 << 30)


class ReliefWorld:
    """Nodes of 16 cores and 64 GiB with pods, and the usage of each."""

    def __init__(self, **settings: Any) -> None:
        rules = rules_of(ExtenderSettings(**settings))
        self.table = Table(counting=rules.counting, pod_windows=8)
        self.decisions = Decisions(self.table, rules)
        self.records: list[PodRecord] = []
        self._offset = 0

    def node(
        self,
        name: str,
        cpu: float | None,
        *,
        age: float = 10.0,
        with_alert: bool = True,
        **fields: Any,
    ) -> "ReliefWorld":
        self.table.put_node(
            TableNode(node=name, allocatable=ROOM, **({"hot_nodes": POLICY} | fields))
        )
        alerts: tuple[OpenAlert, ...] = ()
        if cpu is not None and cpu > 11.2 and with_alert:
            alerts = (msgspec.structs.replace(ALERT, usage_percent=100 * cpu / 16),)
        return self.put_state(name, cpu, age=age, alerts=alerts)

    def put_state(self, name: str, cpu: float | None, **fields: Any) -> "ReliefWorld":
        self._offset += 1
        assert self.table.put_state(
            node_state(
                name, cpu=cpu, memory=8 * GIB, cores=16.0, room=64 * GIB, offset=self._offset,
                **fields,
            )
        )  # fmt: skip
        return self

    def runs(self, node: str, workload: str = "web", **cores: float) -> "ReliefWorld":
        """Prod pods of a ReplicaSet that use and request so many cores; unlike those of `pod`
        their usage is measured."""
        rows = [
            pod_row(uid, cpu_cores_avg=used, memory_bytes_avg=GIB) for uid, used in cores.items()
        ]
        pods = [known_pod(uid, name=uid) for uid in cores]
        window = logged(joined(NODE_ROW, *rows, view=view(*pods), of=header(node, 0)))
        assert self.table.pod_history.put(window)
        for uid, used in cores.items():
            self.pod(node, uid, used, owner=Owner(kind="ReplicaSet", name=workload))
        return self

    def pod(self, node: str, uid: str, cores: float, **fields: Any) -> "ReliefWorld":
        amounts = Resources(cpu_millicores=round(cores * 1000), memory_bytes=1 << 30)
        usual = {"owner": Owner(kind="ReplicaSet", name="web"), "requests": amounts}
        record = running(any_pod(uid, **(usual | fields)), node)
        self.table.put_pod(record)
        self.records.append(record)
        return self

    def report(self, now: float, *nodes: str, **changes: Any) -> None:
        """Let these nodes, or all, have a newer state of ten seconds before `now`."""
        for name in nodes or tuple(self.table):
            state = self.table.snapshot(name).state
            assert state is not None
            self._offset += 1
            fields = {"as_of": format_time(now - 10), "offset": self._offset} | changes
            assert self.table.put_state(msgspec.structs.replace(state, **fields))

    def plan(self, args: dict[str, Any] | None = None, **fields: Any) -> ReliefPlan:
        """The plan by the records; by LowNodeLoad with these `args`; or by the fields of a
        configuration."""
        read = None
        if args is not None or fields:
            read = configuration(profile({} if args is None else {"LowNodeLoad": args}), **fields)
        return self.plan_by(read)

    def plan_by(self, read: Descheduling | None) -> ReliefPlan:
        planning = ReliefPlanning(self.table, self.decisions, read, NOW)
        records = [pod for pod in self.records if pod.node in planning.sources]
        return planning.plan(records, self.table.pod_history)


def profile(args: dict[str, dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """A profile that enables the strategies of `args`, in this order, and configures plugins."""
    strategies = [{"name": name} for name in args if name != "MigrationController"]
    return {
        "name": "a",
        "plugins": {"balance": {"enabled": strategies}},
        "pluginConfig": [{"name": name, "args": own} for name, own in args.items()],
    } | fields


def configuration(*profiles: dict[str, Any], **fields: Any) -> Descheduling:
    read, problems = read_tree(
        {
            "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
            "profiles": [*profiles], **fields,
        }
    )  # fmt: skip
    assert not [problem for problem in problems if not problem.in_force], problems
    assert read is not None
    return read


LOW = {"highThresholds": {"cpu": 70}, "lowThresholds": {"cpu": 45}, "hysteresisPercent": 0}
TIERS = {
    "evictionOrder": [
        {"name": name, "nodeSelector": {"matchLabels": {"tier": name}}}
        for name in ("gold", "silver")
    ]
}
