"""Measure the processor time of a plan that relieves hot nodes, without broker and feed.

    python -m benchmarks.planning [--nodes 10000] [--hot 500] [--pods 1000000]

All pods are columns in memory, as a planner has them; a tenth of the pods of each hot node may not
move. A hot node is up to ten points above its threshold. `choice` is the strategy with a landing on
the coolest node; `with landing` asks the extender's filters and scores for every pod that moves.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np

from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions
from pipeline.extender.landing_simulation import ExtenderLanding
from pipeline.processors.arrays import IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods, PodRanks
from pipeline.processors.descheduling.configured_strategies import PoolNodes
from pipeline.processors.descheduling.landing import Arrival, Landing
from pipeline.processors.descheduling.load_balancing import LowNodeLoadStrategy
from pipeline.processors.descheduling.low_node_load import NodePool
from pipeline.processors.descheduling.strategy import Plan
from pipeline.settings import ExtenderSettings
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.table.strategy_inputs import cluster_nodes
from pipeline.times import format_time
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.nodes import Taint
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources, Usage

_CORES: Final = 32.0
_ROOM: Final = Resources(cpu_millicores=32_000, memory_bytes=128 << 30)
_POOL: Final = NodePool(
    high_percent={"cpu": 65.0, "memory": 80.0}, low_percent={"cpu": 45.0, "memory": 60.0},
    resource_weights={"cpu": 1, "memory": 1},
)  # fmt: skip
_POD: Final = PodRecord(
    node="", uid="u", cgroup_uid="u", namespace="d", name="p", pod_class="prod",
    tolerations=({"key": "shared", "operator": "Exists"},),
)  # fmt: skip
_TAINT: Final = Taint(key="shared", value="", effect="NoSchedule")
_CONSTRAINTS: Final[dict[str, Any]] = {"node_selector": {"zone": "0"}}


class _Coolest:
    """Lands every pod on the coolest target."""

    def land(self, pod: int, targets: IntArray, arrivals: Sequence[Arrival]) -> Landing:
        return Landing(int(targets[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--hot", type=int, default=500)
    parser.add_argument("--pods", type=int, default=1_000_000)
    arguments = parser.parse_args()
    chance = np.random.default_rng(1)
    now = time.time()
    rules = rules_of(ExtenderSettings())
    table = _filled(Table(counting=rules.counting), arguments.nodes, arguments.hot, chance, now)
    names = tuple(table)
    everyone = np.ones(len(names), np.bool_)
    nodes, seconds = _timed(
        lambda: cluster_nodes(table, names, now, 180.0, lambda _: [PoolNodes(_POOL, everyone)])
    )
    print(f"columns of {len(names)} nodes: {seconds:.2f} s", flush=True)
    pods = _pods(nodes, arguments.pods, chance)
    strategy = LowNodeLoadStrategy(pool=_POOL)
    plan, baseline = _timed(lambda: strategy.plan(nodes, pods, _Coolest()))
    _report("choice", plan, baseline, baseline)

    def plan_with_landing(pods: ClusterPods) -> Plan:
        landing = ExtenderLanding(Decisions(table, rules), nodes, pods, now)
        return strategy.plan(nodes, pods, landing)

    _report("with landing", *_timed(lambda: plan_with_landing(pods)), baseline)
    constrained = replace(pods, records=[msgspec.structs.replace(_POD, **_CONSTRAINTS)] * len(pods))
    _report("constrained", *_timed(lambda: plan_with_landing(constrained)), baseline)


def _report(what: str, plan: Plan, seconds: float, baseline: float) -> None:
    relieved = sum(source.is_relieved for source in plan.sources)
    print(
        f"{what}: {seconds:.2f} s, {seconds / baseline:.1f} times the choice, {len(plan.moves)} "
        f"moves, {relieved} of {len(plan.sources)} hot nodes relieved",
        flush=True,
    )


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    before = time.thread_time()
    result = run()
    return result, time.thread_time() - before


def _filled(table: Table, nodes: int, hot: int, chance: np.random.Generator, now: float) -> Table:
    percents = chance.uniform(10.0, 60.0, nodes)
    percents[:hot] = chance.uniform(65.5, 75.0, hot)
    for index, percent in enumerate(percents.tolist()):
        name = f"node-{index:05}"
        table.put_node(
            TableNode(
                node=name, allocatable=_ROOM, capacity=_ROOM, labels={"zone": str(index % 3)},
                taints=(_TAINT,) * (index % 2),
            )
        )  # fmt: skip
        table.put_state(
            NodeStateRecord(
                node=name, as_of=format_time(now - 10), generation=1, offset=index, epoch=1,
                window_seconds=30.0, coverage=1.0,
                allocatable=Usage(cpu_cores=_CORES, memory_bytes=float(128 << 30)),
                usage=Usage(cpu_cores=_CORES * percent / 100, memory_bytes=float(32 << 30)),
            )
        )  # fmt: skip
    return table


def _pods(nodes: ClusterNodes, count: int, chance: np.random.Generator) -> ClusterPods:
    node = np.arange(count) % len(nodes)
    usage = np.zeros((count, len(nodes.resources)))
    usage[:, 0] = np.rint(chance.exponential(250.0, count))
    usage[:, 1] = 200 << 20
    usage[:, 2] = 1.0
    zeros = np.zeros(count, np.int64)
    ranks = PodRanks(
        pod_class=chance.integers(1, 4, count), priority=zeros, kube_qos=zeros, qos=zeros,
        deletion_cost=zeros, eviction_cost=zeros, created_seconds=chance.uniform(0, 1e6, count),
    )  # fmt: skip
    return ClusterPods(
        node=node, usage=usage, expected=usage, requests=np.where(usage > 0, usage, 0.0),
        is_prod=np.ones(count, np.bool_), may_move=chance.uniform(0, 1, count) > 0.1,
        ranks=ranks, records=[_POD] * count, objections={},
    )  # fmt: skip


if __name__ == "__main__":
    main()
