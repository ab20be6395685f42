"""Keep pods from the nodes that gave pods to theirs a short time ago.

A pod that leaves a node for another one makes room there, and may make the other one hot: usage of
two nodes that take turns would let pods of ever other workloads go to and fro between them.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterPods
from pipeline.processors.descheduling.landing import MOST_REJECTED, Landing, Rejected

_REASON: Final = "pods left it for the node that this pod leaves, within the last half an hour"


def land_elsewhere(
    pods: ClusterPods, pod: int, targets: IntArray, land: Callable[[IntArray], Landing]
) -> Landing:
    """What `land` returns for those of the targets that are not at rest for the pod's node."""
    resting = pods.resting_targets.get(int(pods.node[pod]))
    if not resting:
        return land(targets)
    is_resting = np.isin(targets, [*resting])
    if not is_resting.any():
        return land(targets)
    refused = [Rejected(target, _REASON) for target in targets[is_resting].tolist()]
    landing = land(targets[~is_resting])
    return landing._replace(
        rejected=(*landing.rejected, *refused)[:MOST_REJECTED],
        rejections=landing.rejections + len(refused),
    )
