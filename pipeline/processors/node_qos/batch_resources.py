"""Batch resources: cgroups of pods from the requests and limits of batch-cpu and batch-memory."""

from collections.abc import Mapping
from typing import Final

from pipeline.processors.node_qos.cgroup_values import Place, Value
from pipeline.processors.node_qos.claims import Claim
from pipeline.processors.node_qos.node_state import NodeState, PodState
from pipeline.processors.node_qos.tier_amounts import TierAmounts
from pipeline.processors.node_qos.tier_cgroups import AmountsByPath, tier_claims


class BatchResources:
    """Give pods of the class BE the CPU shares, CPU quota and memory limit that they state."""

    name: Final = "batch_resources"
    reads_usage: Final = False

    def claims(self, state: NodeState, former: Mapping[Place, Value]) -> list[Claim]:
        return tier_claims(self.name, state, former, _amounts)


def _amounts(pod: PodState) -> AmountsByPath:
    if pod.qos != "BE":
        return {}
    containers = {c.path: TierAmounts(c.batch, c.batch_limits) for c in pod.containers}
    return {pod.path: TierAmounts(pod.batch, pod.batch_limits)} | containers
