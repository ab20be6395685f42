"""Planner, scheduler and extender in a closed loop: replacements do not return to hot nodes.

The scheduler is the extender's own filters and scores. It estimates pods by their requests, which
say nothing about their usage, and a node has cooled as soon as its pods left.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.relief_arms import Springtide
from benchmarks.simulated_cluster import Cluster, Load, Scenario
from benchmarks.usage_series import Demand
from pipeline.processors.descheduling.cool_downs import WORKLOAD_REST_SECONDS
from pipeline.processors.descheduling.left_nodes import LeftNodes
from pipeline.topics.pods import PodRecord
from tests.planner.test_closed_loop import CAPACITY, NODES, PODS, POLICY, WINDOWS


def load_of(seed: int) -> Load:
    """Pods that use another amount in each of eight periods, together 45% of all nodes."""
    chance = np.random.default_rng(seed)
    share = np.minimum(chance.gamma(0.5, 1.0, size=(8, PODS)), 2.0)
    share *= 0.45 * NODES / share.sum(axis=1, keepdims=True)
    noise = chance.normal(1.0, 0.02, size=(WINDOWS, PODS))
    cpu = share[np.arange(WINDOWS) * 8 // WINDOWS] * CAPACITY[0] * noise
    usage = np.stack([cpu, np.full_like(cpu, 0.02 * CAPACITY[1])], axis=2)
    requests = {(place, 0): 0.02 * CAPACITY for place in range(PODS)}
    return Load(Demand(usage, np.zeros((WINDOWS, PODS), np.int64), requests), CAPACITY, np.ones(2))


class Placing(Cluster):
    """Notes replacements that the scheduler puts where their workload just left, and whether the
    node's alert was open. The extender knows of evictions if actions are read."""

    def __init__(self, seed: int, *, is_read: bool) -> None:
        super().__init__(Scenario(NODES, PODS, warm_up_hours=0), load_of(seed), POLICY, seed)
        if not is_read:
            self.left = LeftNodes()
        self.returned: list[tuple[str, str, bool]] = []

    def _choose_node(self, record: PodRecord) -> str | None:
        node = super()._choose_node(record)
        if node is not None and node in self._left(record):
            state = self.table.snapshot(node).state
            self.returned.append((record.uid, node, state is not None and bool(state.alerts)))
        return node

    def _left(self, record: PodRecord) -> Iterator[str]:
        """The nodes that pods of the same workload left within the rest."""
        assert record.owner is not None
        for eviction in self.evictions:
            workload = eviction.pod.workload
            is_recent = self.now - eviction.at < WORKLOAD_REST_SECONDS
            if is_recent and workload is not None and workload.name == record.owner.name:
                yield eviction.pod.node


@pytest.mark.parametrize("seed", [11, 18, 19, 21])
def test_no_replacement_returns_while_the_alert_is_open(seed: int) -> None:
    """In each of these runs one did while the extender did not know of alerts."""
    assert [placed for placed in run(seed, is_read=False).returned if placed[-1]] == []


def run(seed: int, *, is_read: bool) -> Placing:
    """A run of the loop in which pods were evicted."""
    cluster, arm = Placing(seed, is_read=is_read), Springtide()
    cluster.warm_up()
    for _ in range(WINDOWS - 1):
        arm.act(cluster, cluster.pass_window())
    assert len(cluster.evictions) > 10
    return cluster


@pytest.mark.parametrize("seed", [11, 16])
def test_no_replacement_returns_within_the_rest(seed: int) -> None:
    """In run 16 one does when the alert has closed, if the extender does not know of evictions."""
    assert run(seed, is_read=True).returned == []
