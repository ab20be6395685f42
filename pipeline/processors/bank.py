"""The model bank of one partition: the life of its nodes' models, and the peaks in them.

Owes the rest: a pure function of the windows applied. Each window of a node counts once, in the
order of event time; the bits of a node's models and peaks depend on its own windows alone, not on
which other nodes share the bank or how windows were batched, and `restore(state_of(..))` goes on
as if nothing had happened.

A batch is worked off in rounds in which no node occurs twice. In a round everything per pod is an
array operation over all its nodes; only the bookkeeping per window is a Python loop. Banks of
several partitions may have their rows in the same columns: then a batch may span them, for a few
nodes at once take little longer than one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from pipeline.errors import PredictorError
from pipeline.processors import drift, lessons, points, recent, reporting, snapshot
from pipeline.processors.histogram import shift_factor, shifted_reference_ms
from pipeline.processors.node import BoolArray, ByteArray, NodeModels
from pipeline.processors.pairs import pairs, stacked
from pipeline.processors.peaks import AllPeaks, peaks_of
from pipeline.processors.predictor import Predictor
from pipeline.processors.predictors.registry import build
from pipeline.processors.rows import NEVER, IntArray, Rows
from pipeline.processors.store import Column, Columns
from pipeline.processors.window import (
    ENTITIES,
    FIRST_CLASS,
    UNKNOWN,
    FloatArray,
    ModelConfig,
    NodeWindow,
    Outcome,
    Status,
    rounds,
)

MAX_PODS: Final = 4096
"""Pods of one node with models, as many as a window can list: a state must fit into a record."""


NODE_COLUMNS: Final[Mapping[str, Column]] = {
    **reporting.COLUMNS,
    **points.COLUMNS,
    **drift.COLUMNS,
}
"""What is kept per node, by slot."""


class Bank:
    """Models of all nodes of one partition. Not for several threads at once.

    `predictors` run in place of those that `config` names, so that one can be tried that is not
    installed. Raises `PredictorError` if those of `config` cannot be made.
    """

    def __init__(
        self,
        config: ModelConfig | None = None,
        predictors: Mapping[str, Predictor] | None = None,
    ) -> None:
        self.config = config or ModelConfig()
        self._predictors = (
            build(self.config.predictors, self.config.options)
            if predictors is None
            else dict(predictors)
        )
        if self.config.predictor not in self._predictors:
            raise PredictorError(
                f"predictor {self.config.predictor!r:.100} is to decide but does not run",
                hint=f"choose one of {', '.join(self._predictors)}, or add it to model.predictors",
            )
        self._rows = Rows(self.config.profiles, recent.COLUMNS | _columns(self._predictors))
        self._slots = Columns(NODE_COLUMNS)
        self._free_slots: list[int] = []
        self._nodes: dict[str, NodeModels] = {}
        self._strategy = self.config.strategy
        profiles = [self.config.profile_of(entity) for entity in ENTITIES]
        self._profiles: ByteArray = np.array(profiles, np.int8)
        self._half_life_ms = [profile.half_life_ms for profile in self.config.profiles]
        # For so long a change is told of, by entity and resource.
        half_lives = np.array([self._half_life_ms[profile] for profile in profiles], np.int64)
        self._told_ms = half_lives * drift.HALF_LIVES
        self._expiration_ms = round(self.config.expiration_seconds * 1000)
        self._horizons = np.array([self.config.horizon_of(entity) for entity in ENTITIES])
        columns = self._rows.store.fingerprint + self._slots.fingerprint
        self.fingerprint = self.config.fingerprint(columns)

    def beside(self) -> Bank:
        """An empty bank with its rows in the columns of this one. Whoever drops one of them must
        `clear` it: its rows are lost to the others otherwise."""
        other = copy.copy(self)
        other._nodes = {}
        return other

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes with models, ascending."""
        return tuple(sorted(self._nodes))

    @property
    def num_nodes(self) -> int:
        """Nodes with models."""
        return len(self._nodes)

    @property
    def predictors(self) -> tuple[str, ...]:
        """Names under which peaks are given."""
        return tuple(self._predictors)

    @property
    def num_rows(self) -> int:
        """Entities with a model, in all banks of these columns."""
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Memory of the model columns, spare rows included."""
        return self._rows.nbytes + self._slots.nbytes

    def end_ms(self, node: str) -> int | None:
        """End of the last window applied to a node; None if it has none."""
        known = self._nodes.get(node)
        return None if known is None else known.end_ms

    # -- learning

    def apply(self, windows: Sequence[NodeWindow]) -> list[Outcome]:
        """Apply windows in the order given; one outcome for each."""
        return apply([self] * len(windows), windows)

    def _status(self, window: NodeWindow) -> Status:
        known = self._nodes.get(window.node)
        if known is None or window.end_ms > known.end_ms:
            return "applied"
        if window.end_ms < known.end_ms:
            return "late"
        same = (window.machine_id, window.epoch) == (known.machine_id, known.epoch)
        return "duplicate" if same else "second_exporter"

    def _admit(self, window: NodeWindow) -> tuple[NodeModels, Outcome]:
        """Bring what is kept of the node up to this window; its models learn afterwards."""
        node = self._nodes.get(window.node)
        gap, restarted = 0, False
        if node is None:
            node = self._nodes[window.node] = self._new_node(window)
        else:
            length = max(window.end_ms - window.start_ms, 1)
            gap = max((window.start_ms - node.end_ms + length // 2) // length, 0)
            restarted = window.machine_id != node.machine_id
        if restarted:
            self._rows.clear(node.fixed)
            self._slots.clear(np.array([node.slot]))
        node.machine_id, node.epoch = window.machine_id, window.epoch
        node.end_ms, node.window_ms = window.end_ms, window.end_ms - window.start_ms
        node.coverage = window.coverage
        node.strategy = window.strategy or self._strategy
        node.applied += 1
        node.gaps += gap
        self._list_pods(node, window)
        trained = window.coverage >= self.config.minimum_coverage
        if trained:
            self._move_references(node)
        return node, Outcome(window.node, window.end_ms, "applied", trained, gap, restarted)

    def _new_node(self, window: NodeWindow) -> NodeModels:
        return NodeModels(
            machine_id=window.machine_id,
            epoch=window.epoch,
            fixed=self._rows.allocate(self._profiles),
            slot=self._new_slot(),
            reference_ms=[[None, None] for _ in self._half_life_ms],
        )

    def _new_slot(self) -> int:
        if not self._free_slots:
            have = len(self._slots["points_second"])
            more = max((have + 1) * 3 // 2, 16)
            self._slots.grow(more)
            self._free_slots.extend(range(more - 1, have - 1, -1))
        return self._free_slots.pop()

    def _list_pods(self, node: NodeModels, window: NodeWindow) -> None:
        listing = tuple(window.pod_uids)
        if listing is not node.listing and listing != node.listing:
            # Of a UID that is there twice the first counts.
            first = {uid: at for at, uid in reversed(list(enumerate(listing)))}
            node.uids = tuple(sorted(first))
            node.order = np.array([first[uid] for uid in node.uids], dtype=np.int64)
            new = [uid for uid in node.uids if uid not in node.pods]
            # Their profile is that of their class, which comes with `_take_profiles`.
            rows = self._rows.allocate(np.zeros(len(new), np.int8))
            node.pods.update(zip(new, rows.tolist(), strict=True))
            node.rows = np.array([node.pods[uid] for uid in node.uids], dtype=np.int64)
            node.absent = tuple(uid for uid in node.pods if uid not in first)
            node.listing, node.told = listing, None

    def _take_profiles(self, rows: IntArray, classes: ByteArray) -> None:
        """A pod remembers as its class does; one that changes to a class of another profile begins
        anew, for its weights would mean something else there. A class that is not known is no
        change of it: one lost record would cost all that a pod has learned."""
        if len(self._half_life_ms) == 1:
            return
        wanted = self._profiles[FIRST_CLASS + classes]
        other = np.flatnonzero(self._rows.profile.take(rows) != wanted)
        unknown = classes[other] == lessons.UNKNOWN_CLASS
        other = other[~unknown | (self._rows.last_ms[rows[other]] == NEVER)]
        if len(other):
            self._rows.clear(rows[other])
            self._rows.profile[rows[other]] = wanted[other]

    def _move_references(self, node: NodeModels) -> None:
        """One reference per node, profile and resource, for all histograms and moments of it."""
        for profile, half_lives in enumerate(self._half_life_ms):
            references = node.reference_ms[profile]
            for r, half_life_ms in enumerate(half_lives):
                old = references[r]
                new = shifted_reference_ms(old, node.end_ms, half_life_ms)
                if old is not None and new != old:
                    rows = node.all_rows()
                    rows = rows[self._rows.profile[rows] == profile]
                    self._rows.shift(rows, r, shift_factor(old, new, half_life_ms))
                references[r] = new

    def _learn(self, admitted: Sequence[lessons.Pair]) -> None:
        """Describe the pods of all windows admitted, and teach what has enough coverage."""
        if not admitted:
            return
        lessons.keep_points(self._slots, admitted)
        pods = lessons.describe_pods(admitted)
        rows = np.concatenate([node.rows for _, node in admitted])
        self._take_profiles(rows, pods.classes)
        ends = np.array([node.end_ms for _, node in admitted], np.int64)
        self._rows.seen_ms[rows] = ends.take(pods.window_of)
        covered = [window.coverage >= self.config.minimum_coverage for window, _ in admitted]
        if all(covered):
            self._teach(admitted, pods)
        elif any(covered):
            taught = [pair for pair, enough in zip(admitted, covered, strict=True) if enough]
            self._teach(taught, pods.of(covered))

    def _teach(self, taught: Sequence[lessons.Pair], pods: lessons.Described) -> None:
        """Have all models of these nodes learn their windows."""
        windows, nodes = [window for window, _ in taught], [node for _, node in taught]
        fixed = stacked([node.fixed for node in nodes])
        coverage = np.array([window.coverage for window in windows])
        shares = lessons.shares(pods, coverage)
        unknown_begun = self._rows.last_ms[fixed[:, UNKNOWN]] != NEVER
        values = lessons.entity_values(windows, unknown_begun, pods, pods.usage * pairs(shares))
        if self.config.drift != "off":
            shorten = self.config.drift == "shorten"
            lessons.watch(self._rows, self._slots, nodes, values, shorten)
        # What a pod did in a moment of the window says little of the pod, but is in the sums.
        short = pairs(pods.seen < self.config.minimum_coverage)
        usage = np.where(short, np.nan, pods.usage)
        factors = lessons.factors(nodes, self._half_life_ms)
        ends = np.array([node.end_ms for node in nodes], np.int64)
        rows = np.concatenate([fixed.ravel(), *(node.rows for node in nodes)])
        node_of = np.concatenate([np.arange(len(nodes)).repeat(len(ENTITIES)), pods.window_of])
        place = node_of * factors.shape[1] + self._rows.profile.take(rows)
        self._train(
            rows,
            np.concatenate([values.reshape(-1, 2), usage]),
            factors.reshape(-1, 2).take(place, axis=0),
            ends.take(node_of),
        )

    def _train(
        self, rows: IntArray, values: FloatArray, factors: FloatArray, end_ms: IntArray
    ) -> None:
        """One sample for each row: histogram and moments, recent past, then the predictors."""
        self._rows.train(rows, values, factors, end_ms)
        store = self._rows.store
        recent.observe(store["recent"], store["recent_slot"], rows, values, end_ms)
        for predictor in self._predictors.values():
            predictor.observe(self._rows, rows, values, end_ms)

    # -- forgetting

    def _expire(self, node: NodeModels) -> tuple[str, ...]:
        """Drop the models of pods that were not listed for long, and where pods are more than
        `MAX_PODS` those of the longest absent, however short that is."""
        oldest = node.end_ms - self._expiration_ms
        seen = {uid: int(self._rows.seen_ms[node.pods[uid]]) for uid in node.absent}
        surplus = len(node.pods) - MAX_PODS
        longest = sorted(seen, key=lambda uid: (seen[uid], uid))[: max(surplus, 0)]
        gone = {uid for uid in seen if seen[uid] < oldest}.union(longest)
        expired = tuple(sorted(gone))
        if expired:
            self._rows.release(np.array([node.pods.pop(uid) for uid in expired], dtype=np.int64))
            node.absent = tuple(uid for uid in node.absent if uid in node.pods)
        return expired

    def forget(self, node: str) -> bool:
        """Drop all models of a node that has departed; False if there were none."""
        gone = self._nodes.pop(node, None)
        if gone is None:
            return False
        self._rows.release(gone.all_rows())
        self._slots.clear(np.array([gone.slot]))
        self._free_slots.append(gone.slot)
        return True

    def clear(self) -> None:
        """Drop all models of this bank."""
        if not self._nodes:
            return
        gone = list(self._nodes.values())
        self._nodes.clear()
        self._rows.release(np.concatenate([node.all_rows() for node in gone]))
        slots = [node.slot for node in gone]
        self._slots.clear(np.array(slots))
        self._free_slots.extend(slots)

    # -- peaks

    def peaks(self, nodes: Iterable[str]) -> AllPeaks:
        """Peaks of these nodes. Raises KeyError for a node without models, ValueError for none."""
        names = list(nodes)
        return self._peaks(names, [self._nodes[name] for name in names])

    def _peaks(self, names: Sequence[str], known: Sequence[NodeModels]) -> AllPeaks:
        slots = np.array([node.slot for node in known], np.int64)
        ends = np.array([node.end_ms for node in known], np.int64)
        changes = drift.changes(self._slots, slots, ends, self._told_ms)
        return peaks_of(
            names, known, self._rows, self._predictors, self._horizons, self.config.predictor,
            changes,
        )  # fmt: skip

    def due(self, peaks: AllPeaks) -> BoolArray:
        """Which of these are to be published, and from now on count as if they were.

        `peaks` are those of distinct nodes after their last windows. Asked once after each window
        that is applied, the answer is a function of the node's windows. Raises KeyError for a
        node without models.
        """
        return self._due(peaks, [self._nodes[name] for name in peaks.names])

    def _due(self, peaks: AllPeaks, nodes: Sequence[NodeModels]) -> BoolArray:
        strategies = [node.strategy for node in nodes]
        return reporting.due(
            self._slots,
            np.array([node.slot for node in nodes], np.int64),
            reporting.watched(peaks),
            np.array(
                [
                    reporting.terms_of(strategy, decides)
                    for strategy, decides in zip(strategies, peaks.decides, strict=True)
                ],
                np.int64,
            ),
            peaks.end_ms,
            np.array([strategy.resource_diff_threshold_percent for strategy in strategies]),
            report_interval_ms=round(self.config.report_interval_seconds * 1000),
            force_update_ms=round(self.config.force_update_seconds * 1000),
        )

    def recent_usage(self, nodes: Iterable[str]) -> list[points.RecentUsage]:
        """Statistics of these nodes over the half hour up to the end of their last windows.

        Raises KeyError for a node without models.
        """
        return self._recent_usage([self._nodes[name] for name in nodes])

    def _recent_usage(self, nodes: Sequence[NodeModels]) -> list[points.RecentUsage]:
        slots = np.array([node.slot for node in nodes], np.int64)
        return points.read(self._slots["points"], self._slots["points_second"], slots)

    # -- state

    def state_of(self, node: str) -> bytes:
        """The exact state of a node's models. Raises KeyError for a node without models."""
        return snapshot.capture(node, self._nodes[node], self._rows, self._slots, self.fingerprint)

    def restore(self, node: str, data: bytes) -> None:
        """Take over the state of a node, in place of what was known of it.

        Raises CheckpointError, and leaves the bank as it was, if the bytes are damaged, of another
        version, of another node, or of models that learn otherwise: of another fingerprint.
        """
        state = snapshot.read(node, data, self._rows, self._slots, self.fingerprint)
        self.forget(node)
        self._nodes[node] = snapshot.install(state, self._rows, self._slots, self._new_slot())


Place = tuple[Bank, str]
"""A node's models: those of this name in this bank."""


def apply(banks: Sequence[Bank], windows: Sequence[NodeWindow]) -> list[Outcome]:
    """Apply each window to its bank, in the order given; one outcome for each.

    All `banks` have their rows in the same columns.
    """
    outcomes: list[Outcome | None] = [None] * len(windows)
    for positions in rounds(window.node for window in windows):
        applied: list[tuple[int, NodeWindow, NodeModels]] = []
        for position in positions:
            bank, window = banks[position], windows[position]
            status = bank._status(window)
            if status == "applied":
                node, outcome = bank._admit(window)
                applied.append((position, window, node))
            else:
                outcome = Outcome(window.node, window.end_ms, status)
            outcomes[position] = outcome
        if applied:
            banks[0]._learn([(window, node) for _, window, node in applied])
        for position, _, node in applied:
            learned = outcomes[position]
            if learned and node.absent and (expired := banks[position]._expire(node)):
                outcomes[position] = dataclasses.replace(learned, expired=expired)
    return [outcome for outcome in outcomes if outcome is not None]


def peaks(places: Sequence[Place]) -> AllPeaks:
    """`Bank.peaks` over several banks with their rows in the same columns."""
    return places[0][0]._peaks([name for _, name in places], _models(places))


def due(places: Sequence[Place], of: AllPeaks) -> BoolArray:
    """`Bank.due` over several banks: `of` are the peaks of these places."""
    return places[0][0]._due(of, _models(places))


def recent_usage(places: Sequence[Place]) -> list[points.RecentUsage]:
    """`Bank.recent_usage` over several banks with their rows in the same columns."""
    return places[0][0]._recent_usage(_models(places))


def _models(places: Sequence[Place]) -> list[NodeModels]:
    return [bank._nodes[name] for bank, name in places]


def _columns(predictors: Mapping[str, Predictor]) -> dict[str, Column]:
    """What the predictors keep per row. Raises `PredictorError` where two mean one name."""
    found: dict[str, Column] = {}
    for name, predictor in predictors.items():
        if taken := sorted(predictor.columns.keys() & {*found, *recent.COLUMNS}):
            raise PredictorError(f"predictor {name}: column {taken[0]!r} is another one's")
        found |= predictor.columns
    return found
