"""Histories of workloads, for the windows of nodes to which these come.

Which records are known when a sample is joined is chance, as with pods. The window keeps what was
known, so that peaks are a function of windows alone.
"""

from collections.abc import Mapping, Set
from typing import Final

import numpy as np

from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.topics.pod_columns import PodColumns
from pipeline.topics.windows import MOST_HISTORIES
from pipeline.topics.workload_histories import LONGEST_MS, WorkloadHistoryRecord
from pipeline.topics.workloads import NO_WORKLOAD, Workload

STEP_MS: Final = 300_000
"""Predictions count new pods when five minutes of UTC end."""
_PROD: Final = CLASS_CODES["prod"]


def prod_workloads(pods: PodColumns) -> frozenset[Workload]:
    """The workloads of the pods of Prod that a window lists."""
    rows = np.flatnonzero(pods.classes == _PROD).tolist()
    workloads = {pods.workloads[row] for row in rows}
    return frozenset(each for each in workloads if each not in (None, NO_WORKLOAD) and each)


def joined_histories(
    known: Mapping[Workload, WorkloadHistoryRecord], come: Set[Workload], window_end_ms: int
) -> tuple[WorkloadHistoryRecord, ...]:
    """What is known of workloads that come to a node: at most `MOST_HISTORIES` records, by name,
    and none from long before or, as for windows of a backlog, after the window."""
    records = (known[workload] for workload in sorted(come) if workload in known)
    near = [each for each in records if abs(window_end_ms - each.at_ms) <= LONGEST_MS]
    return tuple(near[:MOST_HISTORIES])
