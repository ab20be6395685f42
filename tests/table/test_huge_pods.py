"""Sums over the pods of a node stay below int64, whatever limits tenants state."""

import numpy as np

from pipeline.table import Table
from pipeline.topics.pods import CountedPod
from pipeline.topics.resource_amounts import LARGEST_AMOUNT, Resources


def test_sums_of_thousands_of_huge_pods_do_not_overflow() -> None:
    table, huge = Table(), Resources(cpu_millicores=LARGEST_AMOUNT, memory_bytes=LARGEST_AMOUNT)
    for number in range(2000):
        uid = f"p{number}"
        table.put_pod(
            CountedPod(node="n", uid=uid, cgroup_uid=uid, pod_class="prod", phase="Running",
                       requests=huge, limits=huge)
        )  # fmt: skip
    sums = table.pods.sums[table.lookup(["n"])[0]]
    assert np.all(sums >= 0)
    assert sums.max() > 2000 * 2**47
