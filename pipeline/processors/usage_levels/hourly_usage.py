"""Mean usage of node pools and workloads by the hour, from windows that are read now and then.

The usage of a pool is that of its nodes as a share of their allocatable; the usage of a workload is
that of its pods divided by their number, in cores and bytes, so that scaling is no change. A pool,
workload or hour of which nothing is known has no value: unknown is not zero.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.model.window_batch import WindowBatch, amounts
from pipeline.processors.usage_levels.level_changes import KEPT_HOURS
from pipeline.topics.hot_node_policy import DEFAULT_POOL
from pipeline.topics.hourly_usage import HourlyUsageRecord
from pipeline.topics.windows import Window
from pipeline.topics.workloads import NO_WORKLOAD

MOST_POOLS: Final = 100
MOST_WORKLOADS: Final = 2000
"""Pools and workloads whose usage is kept: those with the most nodes and pods. One that is kept
stays as long as it has usage."""
MOST_SUBJECTS: Final = 2 * (MOST_POOLS + MOST_WORKLOADS)
"""Pools and workloads with an hour that is kept; of more, those that were seen last."""
FEWEST_READS: Final = 2
"""Of the reads of an hour so many must have seen a pool or workload."""
_SHORT_LIVED: Final = frozenset({"Job"})
"""Kinds whose pods end within hours: there is no day before."""
_DIGITS: Final = 4
_MOST_SHARE: Final = 10.0


class UsageSubject(NamedTuple):
    """A node pool, or a workload as `kind/namespace/name`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def parse_subject(text: str) -> UsageSubject | None:
    """The subject of its text; None for a kind that this version does not know."""
    kind, _, name = text.partition("/")
    return UsageSubject(kind, name) if kind in ("pool", "workload") and name else None


class _Sum:
    """Sums of usage of cpu and memory and of what it is divided by, over the reads of an hour."""

    __slots__ = ("members", "pools", "reads", "usage", "weights")

    def __init__(self) -> None:
        self.usage, self.weights = [0.0, 0.0], [0.0, 0.0]
        self.reads: set[int] = set()
        self.pools: dict[str, int] = {}
        self.members = 0

    def add(self, read: int, usage: Sequence[float], weights: Sequence[float], pool: str) -> None:
        for resource in range(2):
            amount, weight = usage[resource], weights[resource]
            if amount == amount and weight > 0.0:  # both are known
                self.usage[resource] += amount
                self.weights[resource] += weight
        self.reads.add(read)
        self.members += 1
        self.pools[pool] = self.pools.get(pool, 0) + 1

    def mean(self) -> tuple[float | None, float | None]:
        cpu, memory = (
            float(f"{total / weight:.{_DIGITS}g}") if weight > 0.0 else None
            for total, weight in zip(self.usage, self.weights, strict=True)
        )
        return cpu, memory


class HourSums:
    """Usage in one hour, while it is read."""

    def __init__(self) -> None:
        self._sums: dict[UsageSubject, _Sum] = {}
        self._seen: set[tuple[str, int]] = set()

    def add(self, read: int, windows: Iterable[Window]) -> None:
        """Add the windows of the `read`-th read of the hour, each once."""
        new = []
        for window in windows:
            place = window.header.node, window.header.window_end_ms
            if window.type == "window" and place not in self._seen:
                self._seen.add(place)
                new.append(window)
        if not new:
            return
        batch = WindowBatch(new)
        room = amounts([window.node.allocatable for window in new]) * [0.001, 1.0]
        nodes, pods = batch.average.node, batch.average.pods_alive
        for i, window in enumerate(new):
            policy = window.node.hot_nodes
            pool = DEFAULT_POOL if policy is None else policy.pool
            if not (nodes[i] > _MOST_SHARE * room[i]).any():  # one absurd node moves no mean
                self._of("pool", pool).add(read, nodes[i].tolist(), room[i].tolist(), pool)
            facts = batch.facts[i].pods
            rows = zip(
                facts.workloads, facts.active.tolist(), pods[batch.pod_slices[i]].tolist(),
                strict=True,
            )  # fmt: skip
            for workload, is_active, usage in rows:
                if workload in (None, NO_WORKLOAD) or not is_active:
                    continue
                if workload.kind not in _SHORT_LIVED:
                    self._of("workload", str(workload)).add(read, usage, (1.0, 1.0), pool)

    def _of(self, kind: str, name: str) -> _Sum:
        return self._sums.setdefault(UsageSubject(kind, name), _Sum())

    def main_pools(self) -> dict[UsageSubject, str]:
        """The pool in which most pods of each workload are."""
        return {
            subject: max(sorted(own.pools), key=own.pools.__getitem__)
            for subject, own in self._sums.items()
        }

    def means(self, kept: Collection[UsageSubject]) -> tuple[dict[UsageSubject, "Means"], int]:
        """The means of the hour by subject, those in `kept` first, then those with the most
        members; and the number of workloads that are left out."""
        seen = {s: own for s, own in self._sums.items() if len(own.reads) >= FEWEST_READS}
        ranked = sorted(seen, key=lambda s: (s not in kept, -seen[s].members, s))
        most = {"pool": MOST_POOLS, "workload": MOST_WORKLOADS}
        chosen = [s for kind in most for s in [r for r in ranked if r.kind == kind][: most[kind]]]
        left_out = sum(s.kind == "workload" for s in ranked)
        left_out -= sum(s.kind == "workload" for s in chosen)
        return {s: seen[s].mean() for s in chosen}, left_out


Means = tuple[float | None, float | None]
"""Usage of cpu and memory, None is unknown."""


class HourlyUsage:
    """The last `KEPT_HOURS` of each pool and workload. An hour is its number since 1970."""

    def __init__(self) -> None:
        self.newest_hour = -1
        self._rows: dict[UsageSubject, int] = {}
        self._seen_hour: dict[UsageSubject, int] = {}
        self._values = np.full((0, 2, KEPT_HOURS), np.nan, np.float32)
        self._known: set[int] = set()

    def __contains__(self, hour: int) -> bool:
        return hour in self._known

    @property
    def subjects(self) -> list[UsageSubject]:
        """Those with an hour that is kept, in the order of `values`."""
        return [*self._rows]

    def put(self, hour: int, means: Mapping[UsageSubject, Means]) -> None:
        """Set an hour, once or again. Hours that are too old are ignored."""
        if hour <= self.newest_hour - KEPT_HOURS:
            return
        if hour > self.newest_hour:
            self._advance(hour)
        self._known.add(hour)
        new = [subject for subject in means if subject not in self._rows]
        if len(self._rows) + len(new) > MOST_SUBJECTS:
            last = sorted(self._rows, key=lambda s: (s in means, self._seen_hour[s]), reverse=True)
            self._keep({*last[: max(MOST_SUBJECTS - len(new), 0)]})
        for subject in new:
            self._rows[subject] = len(self._rows)
        if missing := len(self._rows) - len(self._values):
            room = np.full((max(missing, len(self._values)), 2, KEPT_HOURS), np.nan, np.float32)
            self._values = np.concatenate([self._values, room])
        self._values[:, :, hour % KEPT_HOURS] = np.nan
        for subject, mean in means.items():
            self._values[self._rows[subject], :, hour % KEPT_HOURS] = [
                np.nan if value is None else value for value in mean
            ]
            self._seen_hour[subject] = max(self._seen_hour.get(subject, -1), hour)

    def _advance(self, hour: int) -> None:
        """Let the kept hours end with `hour`; forget subjects without a kept hour."""
        first = max(self.newest_hour + 1, hour - KEPT_HOURS + 1)
        self._values[:, :, [each % KEPT_HOURS for each in range(first, hour + 1)]] = np.nan
        self.newest_hour = hour
        self._known = {each for each in self._known if each > hour - KEPT_HOURS}
        self._keep({s for s in self._rows if self._seen_hour[s] > hour - KEPT_HOURS})

    def _keep(self, kept: Collection[UsageSubject]) -> None:
        left = [subject for subject in self._rows if subject in kept]
        if len(left) < len(self._rows):
            self._values = self._values[[self._rows[subject] for subject in left]]
            self._rows = {subject: row for row, subject in enumerate(left)}
            self._seen_hour = {subject: self._seen_hour[subject] for subject in left}

    def values(self) -> FloatArray:
        """Usage of the subjects, (n, 2, KEPT_HOURS), the newest hour last, NaN unknown."""
        order = np.arange(self.newest_hour - KEPT_HOURS + 1, self.newest_hour + 1) % KEPT_HOURS
        return self._values[: len(self._rows)][:, :, order].astype(np.float64)


def hour_record(hour: str, means: Mapping[UsageSubject, Means]) -> HourlyUsageRecord:
    """The record of an hour that began at this time."""
    return HourlyUsageRecord(hour=hour, usage={str(s): mean for s, mean in means.items()})


def means_of(record: HourlyUsageRecord) -> dict[UsageSubject, Means]:
    """The means in a record, as many as are kept."""
    means: dict[UsageSubject, Means] = {}
    for text, mean in record.usage.items():
        subject = parse_subject(text)
        if subject is not None and len(means) < MOST_POOLS + MOST_WORKLOADS:
            means[subject] = mean
    return means
