"""OOM kills as memory peaks: what a container would have needed to survive.

Formulas: recommender of the Vertical Pod Autoscaler (`RecordOOM`, with the defaults of
`--oom-min-bump-up-bytes` and `--oom-bump-up-ratio`). A kill counts as a peak of
max(used + 100 MiB, used * 1.2), where `used` is the larger of the memory request and the highest
usage that is known of the pod's present 24 hours. It replaces a lower peak of these 24 hours. A
kill more than 24 hours ago counts no longer.

Peaks of earlier kills are no usage. So a thousand kills count as much as one, until usage or
request rises: without a higher request no loop of restarts raises a recommendation twice.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pipeline.processors.model.model_config import MAX_USAGE

MIN_BUMP_UP_BYTES: Final = 100.0 * 2**20
BUMP_UP_RATIO: Final = 1.2

_MAX_BYTES: Final = float(MAX_USAGE[1])


class PodOomKill(NamedTuple):
    """The last OOM kill that counted of a pod.

    `added_bytes` is the peak that stands for kills in the 24 hours that end at `interval_end_ms`, 0
    if usage was higher; `usage_bytes` is the highest usage that it stands in place of.
    """

    killed_ms: int
    interval_end_ms: int
    added_bytes: float
    usage_bytes: float

    def usage(self, peak_bytes: float, interval_end_ms: int) -> float:
        """The highest usage where a pod's peak is `peak_bytes` in the 24 hours that end then."""
        is_added = (peak_bytes, interval_end_ms) == (self.added_bytes, self.interval_end_ms)
        return self.usage_bytes if is_added else peak_bytes


class WorkloadOomKills(NamedTuple):
    """OOM kills of the pods of a workload: when the last was, the peak as which it counted, and how
    many `kills` counted."""

    killed_ms: int
    peak_bytes: float
    kills: int


def in_total(first: WorkloadOomKills | None, second: WorkloadOomKills) -> WorkloadOomKills:
    """Two OOM kills of a workload, or those of it on two nodes, in total."""
    if first is None:
        return second
    return max(first, second)._replace(kills=first.kills + second.kills)


def needed_bytes(used_bytes: float) -> float:
    """The peak that counts for a kill of a pod that used so much.

    >>> needed_bytes(100 * 2**20) / 2**20, needed_bytes(1000 * 2**20) / 2**20
    (200.0, 1200.0)
    """
    return min(max(used_bytes + MIN_BUMP_UP_BYTES, used_bytes * BUMP_UP_RATIO), _MAX_BYTES)
