"""The pods of all nodes as columns: sums of their amounts per node, and the pods in flight.

A pod is *in flight* while the usage of its node does not include it. A *placed* pod is one that the
extender expects on a node; it counts for `TENTATIVE_SECONDS` before its record arrives, so that the
next pod does not take its room. Sums change with each pod, without a recount; pods in flight are
recomputed when they are read (`refresh`), for the rows that changed since.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES, CLASSES
from pipeline.processors.loadaware.in_flight import (
    AssignedPods,
    InFlightSums,
    is_in_flight,
    sum_in_flight,
)
from pipeline.processors.loadaware.pod_amounts import Counting, Pod
from pipeline.processors.placement.victim_selection import PUSHED_OUT
from pipeline.processors.scorers.target_load_packing import is_unmeasured
from pipeline.table import limits
from pipeline.table.node_names import RowArray, Rows
from pipeline.table.pod_arrays import (
    NEVER_EVICTED,
    POD_ARRAYS,
    EvictablePods,
    PodArrays,
    ReportedUsage,
    grown,
    priority_of,
    reported_amount,
)
from pipeline.table.tentative_pods import TentativePods
from pipeline.times import time_or_none
from pipeline.topics.pod_columns import ENDED

_PROD: Final = CLASS_CODES["prod"]
_UNKNOWN: Final = CLASS_CODES["unknown"]
_STORED: Final = [name for name in POD_ARRAYS if name != "flying"]
_ROW_ARRAYS: Final = (
    "sums",
    "flight",
    "prod_flight",
    "unreported",
    "unmeasured",
    "unseen",
    "oldest",
)
_IS_EVICTABLE_CLASS: Final = np.array([name in PUSHED_OUT for name in CLASSES])


class PodTable:
    """Pods by UID, on rows of the state table. `counting` declares the amounts.

    `sums` are whole amounts (rows, amounts) in the order of `counting.names`. `flight` (rows,
    resources of LoadAware) is what pods in flight add to the usage of each node, `prod_flight` what
    they add to that of its Prod, `unreported` (rows, resources) the estimates of pods that its last
    window does not have. `unmeasured` (rows,) are the millicores of TargetLoadPacking that
    are in no average yet, `unseen` (rows,) those of pods that came after the last window began.
    `oldest` (rows,) is when the first pod in flight came, infinite for none.
    """

    def __init__(self, counting: Counting) -> None:
        self.counting = counting
        self._names = {name: index for index, name in enumerate(counting.names)}
        self._resources = counting.load_aware.resources
        self._index: dict[str, int] = {}
        self._free: list[int] = []
        self._uids: list[str] = []
        self._cgroup_uids: list[str] = []
        self._node = np.full(limits.FIRST_ROWS, -1, np.int64)
        self._class = np.zeros(limits.FIRST_ROWS, np.int8)
        self._priority = np.full(limits.FIRST_ROWS, NEVER_EVICTED, np.int64)
        self._is_pending = np.zeros(limits.FIRST_ROWS, np.bool_)
        self._scheduled = np.zeros(limits.FIRST_ROWS)
        self._deadline = np.full(limits.FIRST_ROWS, np.nan)
        self._amounts = np.zeros((limits.FIRST_ROWS, len(self._names)), np.int64)
        self._flying: dict[int, set[int]] = {}
        self._changed: set[int] = set()
        self._tentative = TentativePods()
        # Each amount of all rows is contiguous, because columns are read whole.
        self.sums = np.zeros((limits.FIRST_ROWS, len(self._names)), np.int64, order="F")
        self.flight = np.zeros((limits.FIRST_ROWS, len(self._resources)), np.int64, order="F")
        self.prod_flight = np.zeros_like(self.flight)
        self.unreported = np.zeros_like(self.flight)
        self.unmeasured = np.zeros(limits.FIRST_ROWS, np.int64)
        self.unseen = np.zeros(limits.FIRST_ROWS, np.int64)
        self.oldest = np.full(limits.FIRST_ROWS, np.inf)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def in_flight(self) -> int:
        """How many pods are in flight."""
        return sum(map(len, self._flying.values()))

    @property
    def tentative(self) -> int:
        """How many pods are placed and have no record yet."""
        return len(self._tentative)

    def sums_of(self, name: str, rows: Rows) -> IntArray:
        """The sums of one amount, (rows,). Raises KeyError for an unknown amount."""
        sums: IntArray = self.sums[rows, self._names[name]]
        return sums

    def sums_without_placed(self, name: str, rows: RowArray) -> IntArray:
        """The sums of one amount over pods that have a record, (rows,)."""
        amount = self._names[name]
        sums: IntArray = self.sums[:, amount].copy()
        for slot in map(self._index.__getitem__, self._tentative):
            sums[self._node[slot]] -= self._amounts[slot, amount]
        return sums[rows]

    def row_of(self, uid: str) -> int | None:
        """The row of a pod, or None."""
        slot = self._index.get(uid)
        return None if slot is None else int(self._node[slot])

    def is_seen(self, uid: str) -> bool:
        """Whether the record of a pod has arrived."""
        return uid in self._index and uid not in self._tentative

    def is_leaving(self, uid: str) -> bool:
        """Whether an evictable pod is deleted, or being deleted."""
        slot = self._index.get(uid)
        return slot is None or int(self._priority[slot]) == NEVER_EVICTED

    def class_of(self, uid: str) -> str | None:
        """The class of a pod; None if the pod is unknown."""
        slot = self._index.get(uid)
        return None if slot is None else CLASSES[self._class[slot]]

    def amounts_of(self, uids: Iterable[str], row: int) -> IntArray:
        """The sums of the amounts of those of these pods that are on this row, (amounts,)."""
        slots = (self._index[uid] for uid in set(uids) if uid in self._index)
        here = [slot for slot in slots if self._node[slot] == row]
        sums: IntArray = self._amounts[here].sum(axis=0)
        return sums

    def evictable(self, rows: RowArray, began_seconds: FloatArray) -> EvictablePods:
        """The pods on these rows (each once) of lower classes than Prod that the last windows of
        their nodes measured; the windows began at `began_seconds`, (rows,)."""
        count = len(self._uids)
        index_of_row = np.full(len(self.sums), -1, np.intp)
        index_of_row[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        may_leave = _IS_EVICTABLE_CLASS[self._class[:count]] & ~self._is_pending[:count]
        slots = np.flatnonzero(may_leave & (self._node[:count] >= 0))
        node = index_of_row[self._node[slots]]
        slots, node = slots[node >= 0], node[node >= 0]
        measured = self._scheduled[slots] <= began_seconds[node]
        slots, node = slots[measured], node[measured]
        return EvictablePods(
            slots, node, self._class[slots], self._priority[slots], self._amounts[slots]
        )

    def uid_at(self, slot: int) -> str:
        """The UID of the pod at this slot."""
        return self._uids[slot]

    # -- pods come and leave

    def put(
        self,
        row: int,
        pod: Pod,
        now: float | None = None,
        seconds: float = limits.TENTATIVE_SECONDS,
    ) -> int | None:
        """Put a pod on a row: from its record or, with a time `now`, placed for so many `seconds`.
        Returns its previous row. A pod that has ended is removed."""
        before = self.remove(pod.uid)
        if pod.phase in ENDED:
            return before
        slot = self._new_slot()
        self._index[pod.uid] = slot
        scheduled = now if now is not None else self._since(pod)
        self._uids[slot], self._cgroup_uids[slot] = pod.uid, pod.cgroup_uid
        self._node[slot] = row
        self._class[slot] = CLASS_CODES.get(pod.pod_class, _UNKNOWN)
        self._priority[slot] = priority_of(pod)
        self._is_pending[slot] = pod.phase in ("Pending", "")
        self._scheduled[slot] = scheduled
        deadline = self.counting.deadline(pod, scheduled)
        self._deadline[slot] = np.nan if deadline is None else deadline
        self._amounts[slot] = self.counting.amounts(pod)
        self.sums[row] += self._amounts[slot]
        self._flying.setdefault(row, set()).add(slot)
        self._changed.add(row)
        if now is not None:
            self._tentative.put(pod.uid, now + seconds)
        return before

    def remove(self, uid: str) -> int | None:
        """Remove a pod. Returns its row, or None."""
        self._tentative.remove(uid)
        slot = self._index.pop(uid, None)
        if slot is None:
            return None
        row = int(self._node[slot])
        self.sums[row] -= self._amounts[slot]
        flying = self._flying.get(row, set())
        if slot in flying:
            flying.discard(slot)
            self._changed.add(row)
        self._node[slot] = -1
        self._free.append(slot)
        return row

    def withdraw(self, uid: str) -> int | None:
        """Remove a pod if it is only placed. Returns its row, or None."""
        return self.remove(uid) if uid in self._tentative else None

    @contextmanager
    def set_aside(self, uid: str) -> Iterator[None]:
        """A context in which a placed pod counts on no node; call `refresh` before and after."""
        if uid not in self._tentative:
            yield
            return
        slot = self._index[uid]
        row = int(self._node[slot])
        flying = self._flying.setdefault(row, set())
        was_in_flight = slot in flying
        flying.discard(slot)
        self.sums[row] -= self._amounts[slot]
        self._changed.add(row)
        try:
            yield
        finally:
            self.sums[row] += self._amounts[slot]
            if was_in_flight:
                self._flying.setdefault(row, set()).add(slot)
            self._changed.add(row)

    def expired(self, now: float) -> list[str]:
        """Placed pods whose record did not arrive in time, each returned once; the caller removes
        them."""
        return self._tentative.expired(now)

    def usage_changed(self, row: int) -> None:
        """Note that the usage of a row has changed."""
        if row in self._flying:
            self._changed.add(row)

    def usage_lost(self, row: int) -> None:
        """Note that the usage of a row is unknown: all of its pods are in flight."""
        flying = self._flying.get(row, set())
        if self.sums[row, self._names["pods"]] > len(flying):
            self._flying[row] = set(np.flatnonzero(self._node[: len(self._uids)] == row).tolist())
        self._changed.add(row)

    @staticmethod
    def _since(pod: Pod) -> float:
        """When a pod was scheduled, else created, else 0."""
        scheduled = time_or_none(pod.scheduled_at)
        created = time_or_none(pod.created_at) if scheduled is None else scheduled
        return created or 0.0

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        self._uids.append("")
        self._cgroup_uids.append("")
        if len(self._cgroup_uids) > len(self._node):
            for name in _STORED:
                setattr(self, f"_{name}", grown(getattr(self, f"_{name}")))
        return len(self._cgroup_uids) - 1

    def columns(self) -> PodArrays:
        """A copy of every pod that has a record. Placed pods are left out: after a restart nobody
        knows whether they were bound."""
        uids, cgroups = self._uids[:], self._cgroup_uids[:]
        count = len(uids)
        flying = np.zeros(count, np.bool_)
        flying[np.fromiter(chain.from_iterable(self._flying.values()), np.intp)] = True
        arrays = {name: getattr(self, f"_{name}")[:count].copy() for name in _STORED}
        arrays["flying"] = flying
        arrays["node"][[self._index[uid] for uid in self._tentative]] = -1
        return PodArrays(uids, cgroups, arrays)

    def restore(self, columns: PodArrays, row_of: RowArray) -> None:
        """Replace all pods by these; `row_of` maps old rows to new ones. Raises ValueError and
        IndexError for invalid arrays."""
        arrays = columns.arrays
        present = np.flatnonzero(arrays["node"] >= 0)
        count = len(present)
        size = max(limits.FIRST_ROWS, count)
        for name in _STORED:
            old = getattr(self, f"_{name}")
            restored = np.zeros((size, *old.shape[1:]), old.dtype)
            restored[:count] = arrays[name][present]
            setattr(self, f"_{name}", restored)
        self._node[:count], self._node[count:] = row_of[arrays["node"][present]], -1
        self._uids = [columns.uids[slot] for slot in present.tolist()]
        self._cgroup_uids = [columns.cgroup_uids[slot] for slot in present.tolist()]
        self._index = {uid: slot for slot, uid in enumerate(self._uids)}
        if len(self._index) != count:
            raise ValueError("a pod occurs twice")
        self._free = []
        np.add.at(self.sums, self._node[:count], self._amounts[:count])
        for slot in np.flatnonzero(arrays["flying"][present]).tolist():
            row = int(self._node[slot])
            self._flying.setdefault(row, set()).add(slot)
            self._changed.add(row)

    def reserve(self, rows: int) -> None:
        """Make room for so many rows."""
        while len(self.sums) < rows:
            for name in _ROW_ARRAYS:
                setattr(self, name, grown(getattr(self, name)))
            self.oldest[len(self.oldest) // 2 :] = np.inf

    # -- pods in flight

    def refresh(self, reported: ReportedUsage) -> int:
        """Recompute pods in flight on the rows that have changed; returns how many."""
        if not self._changed:
            return 0
        rows = np.fromiter(self._changed, np.intp, len(self._changed))
        self._changed.clear()
        here = [self._flying.get(row, ()) for row in rows.tolist()]
        slots, updated, report, pods = self._flying_on(rows, here, reported)
        node, added = pods.node, self._sums(pods, updated, report)
        self.flight[rows], self.prod_flight[rows] = added.node_delta, added.prod_delta
        self.unreported[rows] = added.unreported
        end = np.fmax(updated, -np.inf)[node]
        fresh = is_unmeasured(pods.scheduled_seconds, end)
        late = pods.scheduled_seconds > end - report[node]
        packed = self._amounts[slots, self._names["packing"]]
        for millicores, selected in ((self.unmeasured, fresh), (self.unseen, late)):
            per_row = np.bincount(node[selected], packed[selected], minlength=len(rows))
            millicores[rows] = per_row.astype(np.int64)
        self.oldest[rows] = np.inf
        np.minimum.at(self.oldest, rows[node], pods.scheduled_seconds)
        self._settle(slots, is_in_flight(pods, updated, report) | fresh | late)
        return len(rows)

    def flight_without(
        self, rows: RowArray, without: Sequence[Sequence[str]], reported: ReportedUsage
    ) -> tuple[IntArray, IntArray]:
        """`flight` and `prod_flight` of these rows, (rows, resources), without the pods whose UIDs
        `without` lists per row."""
        here = [
            self._flying.get(row, set()) - {self._index.get(uid, -1) for uid in uids}
            for row, uids in zip(rows.tolist(), without, strict=True)
        ]
        _, updated, report, pods = self._flying_on(rows, here, reported)
        added = self._sums(pods, updated, report)
        return added.node_delta, added.prod_delta

    def _flying_on(
        self, rows: RowArray, here: Sequence[Collection[int]], reported: ReportedUsage
    ) -> tuple[RowArray, FloatArray, FloatArray, AssignedPods]:
        """Of the pods `here` on each of the rows: their slots, the ends and lengths of the rows'
        last windows, and the pods themselves."""
        slots = np.fromiter(chain.from_iterable(here), np.intp)
        node = np.arange(len(rows)).repeat([len(pods) for pods in here])
        updated, report = reported.as_of_seconds[rows], np.fmax(reported.window_seconds[rows], 0.0)
        return slots, updated, report, self._assigned(slots, node, reported, updated, report)

    def _sums(self, pods: AssignedPods, updated: FloatArray, report: FloatArray) -> InFlightSums:
        nothing = np.zeros((len(updated), len(self._resources)), np.int64)
        return sum_in_flight(pods, updated, report, nothing)

    def _assigned(
        self,
        slots: RowArray,
        node: IntArray,
        reported: ReportedUsage,
        updated: FloatArray,
        report: FloatArray,
    ) -> AssignedPods:
        """The pods at these slots. Node states list the usage of young pods; for an older running
        pod its estimate stands for its usage, so that nothing is added for it."""
        estimate = self._amounts[slots, : len(self._resources)]
        scheduled = self._scheduled[slots]
        began = np.fmax(updated - report, -np.inf)[node]
        is_measured = ~self._is_pending[slots] & (scheduled <= began)
        usage = np.where(is_measured[:, None], estimate, 0)
        for index, slot in enumerate(slots.tolist()):
            state = reported.states[self._node[slot]]
            young = None if state is None else state.young_pods.get(self._cgroup_uids[slot])
            if young is not None:
                usage[index] = [reported_amount(young, name) for name in self._resources]
                is_measured[index] = True
        return AssignedPods(
            node=node,
            is_prod=self._class[slots] == _PROD,
            estimate=estimate,
            usage=usage,
            is_reported=is_measured,
            is_reported_prod=is_measured,
            scheduled_seconds=scheduled,
            deadline_seconds=self._deadline[slots],
        )

    def _settle(self, slots: RowArray, stay: BoolArray) -> None:
        """Take the other pods out of flight. A pod that its node measured once stays measured, so
        it need not be looked at with every window."""
        for slot in slots[~stay].tolist():
            row = int(self._node[slot])
            self._flying[row].discard(slot)
            if not self._flying[row]:
                del self._flying[row]
