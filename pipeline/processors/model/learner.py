"""The learner: all work in the columns that banks share, over many nodes at once.

It allocates and releases rows, trains models with windows, and computes peaks, of nodes of any
bank. The result for a node depends on the node alone, to the last bit. Banks decide which nodes
there are and which windows count, so that one node's partition may leave without touching others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from pipeline.errors import PredictorError
from pipeline.processors.arrays import BoolArray, ByteArray, FloatArray, IntArray
from pipeline.processors.model import (
    alert_columns,
    day_slots,
    drift,
    pending_peaks,
    publish_policy,
    saved_models,
    training_samples,
    usage_points,
)
from pipeline.processors.model.column_store import Column, Columns
from pipeline.processors.model.entity_models import NEVER, EntityModels
from pipeline.processors.model.histogram import shift_factor, shifted_reference_ms
from pipeline.processors.model.model_config import (
    ENTITIES,
    FIRST_CLASS,
    MAX_USAGE,
    UNKNOWN,
    ModelConfig,
)
from pipeline.processors.model.node_models import NodeModels
from pipeline.processors.model.node_peaks import PeakBatch
from pipeline.processors.model.peak_prediction import predict_peaks, view_of
from pipeline.processors.model.pending_peaks import EndedPeak, Schedule, pending_columns
from pipeline.processors.model.predictor import (
    Predictor,
    WindowUsage,
    check_horizon,
    may_decide,
    named,
    node_columns,
    node_predictors,
)
from pipeline.processors.model.resource_pairs import per_resource, stack_rows
from pipeline.processors.model.training_batch import (
    UNKNOWN_CLASS,
    ListedPods,
    TrainingBatch,
    WindowHead,
    valid,
)
from pipeline.processors.model.workload_models import POD_COLUMNS, WorkloadModels
from pipeline.processors.predictors.registry import build

MAX_PODS: Final = 4096
"""Pods of one node with models, as many as a window can list: a state must fit into a record."""
NODE_COLUMNS: Final[Mapping[str, Column]] = {
    **publish_policy.COLUMNS,
    **usage_points.COLUMNS,
    **drift.COLUMNS,
}
"""Columns per node, by slot."""
_OWN_COLUMNS: Final[dict[str, Column]] = {**day_slots.COLUMNS, **POD_COLUMNS}
"""Columns per entity beside those of predictors."""


class Learner:
    """The models of the entities of all nodes, and the `predictors` that read them, by name.

    `NodeModels` have the row numbers of a node; the caller owns these rows until `release`.
    `fingerprint` is a hash of all that shapes what is learned. `alerts` are the columns of hot-node
    detection, by slot. Raises `PredictorError` if the
    predictors of `config` cannot be created, two of them declare one column, or the deciding one
    does not run or may not decide.
    """

    def __init__(self, config: ModelConfig, predictors: Mapping[str, Predictor] | None) -> None:
        self.config, deciding = config, config.strategy.predictor
        self.predictors: Mapping[str, Predictor] = (
            build(config.predictors, config.options) if predictors is None else dict(predictors)
        )
        if deciding not in self.predictors:
            raise PredictorError(
                f"model.predictor: {deciding!r:.100} is to decide but does not run",
                key="model.predictor",
                hint=f"choose one of {', '.join(self.predictors)}, or add it to model.predictors",
            )
        # Predictors passed in are only tried out.
        if predictors is None and not may_decide(self.predictors[deciding]):
            raise PredictorError(
                f"model.predictor: {deciding!r:.100} is not allowed, allowed is one that "
                "has a peak of the system and of Prod, without which nothing could be handed out",
                key="model.predictor",
                hint="let it run beside another one, or as a member of `max`",
            )
        self.schedule = Schedule.of(
            config.accuracy_interval_seconds, config.entity_horizon_seconds("prod")
        )
        by_row = _columns(self.predictors, _OWN_COLUMNS, _row_columns)
        self.models = EntityModels(config.profiles, by_row, self.schedule.pending)
        self.workloads = WorkloadModels(self.models)
        self._slots = Columns(_columns(self.predictors, NODE_COLUMNS, node_columns))
        self.alerts = Columns(alert_columns.COLUMNS)
        self._pending = Columns(pending_columns(self.schedule, [*self.predictors]))
        self._free_slots: list[int] = []
        profiles = [config.profile_index(entity) for entity in ENTITIES]
        self._profiles: ByteArray = np.array(profiles, np.int8)
        self._half_life_ms = [profile.half_life_ms for profile in config.profiles]
        # A change is published for so long, by entity and resource.
        half_lives = np.array([self._half_life_ms[profile] for profile in profiles], np.int64)
        self._drift_ms = half_lives * drift.PUBLISHED_HALF_LIVES
        self._horizons = np.array([config.entity_horizon_seconds(entity) for entity in ENTITIES])
        for predictor in self.predictors.values():
            check_horizon(predictor, config.entity_horizon_seconds("prod"))
        self._prediction_settings = config.prediction_settings(self.predictors)
        columns = self.models.store.fingerprint + self._slots.fingerprint
        self.fingerprint = config.fingerprint(columns)

    @property
    def nbytes(self) -> int:
        """Memory of the columns, spare rows included."""
        slots = self._slots.nbytes + self.alerts.nbytes + self._pending.nbytes
        return self.models.nbytes + self.workloads.models.nbytes + slots

    @property
    def slots(self) -> Columns:
        """The columns per node, by slot."""
        return self._slots

    # -- rows and slots

    def new_node(self, machine_id: str, epoch: int) -> NodeModels:
        """A node whose models are empty, without pods."""
        return NodeModels(
            machine_id=machine_id,
            epoch=epoch,
            entity_rows=self.models.allocate(self._profiles),
            slot=self._new_slot(),
            reference_ms=[[None, None] for _ in self._half_life_ms],
        )

    def _new_slot(self) -> int:
        if not self._free_slots:
            have = len(self._slots["points_second"])
            more = max((have + 1) * 3 // 2, 16)
            self._slots.grow(more)
            self.alerts.grow(more)
            self._pending.grow(more)
            self._free_slots.extend(range(more - 1, have - 1, -1))
        return self._free_slots.pop()

    def reset(self, node: NodeModels) -> None:
        """Clear the models of the node itself, its system and its classes, but not its pods.
        Alerts stay: their end is to be published."""
        self.models.clear(node.entity_rows)
        self._slots.clear(np.array([node.slot]))
        pending_peaks.abandon(self._pending, np.array([node.slot]), self.schedule)

    def expire_pods(self, node: NodeModels) -> tuple[str, ...]:
        """Drop the models of pods that no window has listed for the expiration time, and of the
        longest absent ones beyond `MAX_PODS`. Returns their UIDs, ascending."""
        oldest_ms = node.end_ms - round(self.config.expiration_seconds * 1000)
        seen = {uid: int(self.models.seen_ms[node.row_by_uid[uid]]) for uid in node.absent_uids}
        surplus = max(len(node.row_by_uid) - MAX_PODS, 0)
        longest_absent = sorted(seen, key=lambda uid: (seen[uid], uid))[:surplus]
        outdated = (uid for uid in seen if seen[uid] < oldest_ms)
        expired = tuple(sorted({*longest_absent, *outdated}))
        if expired:
            self.models.release(np.array([node.row_by_uid.pop(uid) for uid in expired], np.int64))
            node.absent_uids = tuple(uid for uid in node.absent_uids if uid in node.row_by_uid)
        return expired

    def release(self, nodes: Sequence[NodeModels]) -> None:
        """Drop all models of these nodes, at least one."""
        self.models.release(np.concatenate([node.all_rows() for node in nodes]))
        self.workloads.release(nodes)
        slots = [node.slot for node in nodes]
        self._slots.clear(np.array(slots))
        self.alerts.clear(np.array(slots))
        self._pending.clear(np.array(slots))
        self._free_slots.extend(slots)

    # -- learning

    def prepare(self, node: NodeModels, window: WindowHead) -> bool:
        """Give each pod of the node's next window a row, and find the absent ones.

        Returns whether the window covers enough to train; if so, decay references are moved to its
        end.
        """
        self._list_pods(node, window.pods)
        enough = self._covers_enough(window)
        if enough:
            self._move_references(node, window.end_ms)
            self.workloads.move_reference(node, window.end_ms)
        self.workloads.expire(node, window.start_ms, window.end_ms)
        return enough

    def _covers_enough(self, window: WindowHead) -> bool:
        return window.coverage >= self.config.minimum_coverage

    def _list_pods(self, node: NodeModels, pods: ListedPods) -> None:
        known = node.listed
        has_changed = pods.uids is not known.uids and pods.uids != known.uids
        if has_changed:
            new = [uid for uid in pods.uids if uid not in node.row_by_uid]
            # Their profile is that of their class, which `_assign_profiles` sets.
            rows = self.models.allocate(np.zeros(len(new), np.int8))
            node.row_by_uid.update(zip(new, rows.tolist(), strict=True))
            node.pod_rows = np.array([node.row_by_uid[uid] for uid in pods.uids], dtype=np.int64)
            listed = set(pods.uids)
            node.absent_uids = tuple(uid for uid in node.row_by_uid if uid not in listed)
        if has_changed or pods.workloads != known.workloads:
            self.workloads.assign(node, pods)
        node.listed = pods

    def _move_references(self, node: NodeModels, end_ms: int) -> None:
        """Move the decay reference of each profile and resource of the node, with all its rows."""
        for profile, half_lives in enumerate(self._half_life_ms):
            references = node.reference_ms[profile]
            for r, half_life_ms in enumerate(half_lives):
                old = references[r]
                new = shifted_reference_ms(old, end_ms, half_life_ms)
                if old is not None and new != old:
                    rows = node.all_rows()
                    rows = rows[self.models.profile[rows] == profile]
                    self.models.shift(rows, r, shift_factor(old, new, half_life_ms))
                references[r] = new

    def learn(self, batch: TrainingBatch, nodes: Sequence[NodeModels]) -> None:
        """Store the facts of these windows (at least one) about distinct nodes and pods, and train
        the models with those that cover enough. `prepare` has seen each window and its node."""
        usage_points.observe(
            self._slots["points"],
            self._slots["points_second"],
            _node_slots(nodes),
            np.array([head.start_ms for head in batch.heads], np.int64),
            batch.end_ms,
            [head.points for head in batch.heads],
        )
        training_samples.remember_pods(batch, nodes)
        rows = np.concatenate([node.pod_rows for node in nodes])
        end_ms = batch.end_ms.take(batch.window_index)
        self._assign_profiles(rows, np.concatenate([node.listed.classes for node in nodes]))
        self.models.seen_ms[rows] = end_ms
        covered = [i for i, head in enumerate(batch.heads) if self._covers_enough(head)]
        if covered:
            self._observe_batch(batch.select(covered), [nodes[i] for i in covered])

    def _assign_profiles(self, rows: IntArray, classes: ByteArray) -> None:
        """Give each pod the profile of its class. A pod whose class changes to another profile is
        cleared, for its weights have another meaning there. The class `unknown` changes nothing: a
        lost record must not cost what a pod has learned."""
        if len(self._half_life_ms) == 1:
            return
        wanted = self._profiles[FIRST_CLASS + classes]
        changed = np.flatnonzero(self.models.profile.take(rows) != wanted)
        unknown = classes[changed] == UNKNOWN_CLASS
        changed = changed[~unknown | (self.models.last_ms[rows[changed]] == NEVER)]
        if len(changed):
            self.models.clear(rows[changed])
            self.models.profile[rows[changed]] = wanted[changed]

    def _observe_batch(self, batch: TrainingBatch, nodes: Sequence[NodeModels]) -> None:
        """Train all models of these nodes with their windows."""
        entity_rows = stack_rows([node.entity_rows for node in nodes])
        usage = valid(batch.pod_usage, MAX_USAGE)
        # What a pod did in a moment of the window says little of the pod, but is in the sums.
        short = batch.pod_coverage < self.config.minimum_coverage
        shares = usage * per_resource(training_samples.observed_shares(batch))
        classes = np.concatenate([node.listed.classes for node in nodes])
        values = training_samples.entity_values(
            batch,
            self.models.last_ms[entity_rows[:, UNKNOWN]] != NEVER,
            classes,
            shares,
            short | np.concatenate([node.listed.ended for node in nodes]),
        )
        if self.config.drift != "off":
            shorten = self.config.drift == "shorten"
            training_samples.detect_drift(self.models, self._slots, nodes, values, shorten)
        pending_peaks.follow(
            self._pending, _node_slots(nodes), self.schedule, batch,
            pending_peaks.prod_usage(batch, classes, values, shares),
            self.models.in_cohort[np.concatenate([node.pod_rows for node in nodes])],
        )  # fmt: skip
        usage = np.where(per_resource(short), np.nan, usage)
        weights = training_samples.sample_weights(nodes, self._half_life_ms)
        rows = np.concatenate([entity_rows.ravel(), *(node.pod_rows for node in nodes)])
        entity_nodes = np.arange(len(nodes)).repeat(len(ENTITIES))
        node_index = np.concatenate([entity_nodes, batch.window_index])
        # The weight of each row, by its node and profile.
        place = node_index * weights.shape[1] + self.models.profile.take(rows)
        self._train(
            rows,
            np.concatenate([values.reshape(-1, 2), usage]),
            weights.reshape(-1, 2).take(place, axis=0),
            batch.end_ms.take(node_index),
        )
        self.workloads.train(batch, nodes, rows[len(entity_nodes) :], usage)
        self._learn_nodes(batch, nodes, values, usage)

    def _train(
        self, rows: IntArray, values: FloatArray, weights: FloatArray, end_ms: IntArray
    ) -> None:
        """Add one sample to each row: histogram, moments, day slots, then the predictors.
        Raises `PredictorError`, which names the predictor, if one fails."""
        self.models.train(rows, values, weights, end_ms)
        store = self.models.store
        day_slots.observe(store["recent"], store["recent_slot"], rows, values, end_ms)
        for predictor in self.predictors.values():
            with named(predictor):
                predictor.observe(self.models, rows, values, end_ms)

    def _learn_nodes(
        self,
        batch: TrainingBatch,
        nodes: Sequence[NodeModels],
        entities: FloatArray,
        pods: FloatArray,
    ) -> None:
        """Let the predictors that learn nodes as a whole learn these windows, with the usage of
        `entities` (k, E, 2) and `pods` (n, 2). Raises `PredictorError`, which names the one."""
        learners = node_predictors(self.predictors.values())
        if not learners:
            return
        view = view_of(nodes, self.models, self._slots, self._horizons)
        lengths_ms = batch.end_ms - np.array([head.start_ms for head in batch.heads], np.int64)
        uids = [node.listed.uids for node in nodes]
        windows = WindowUsage(lengths_ms, entities, pods, uids)
        for predictor in learners:
            with named(predictor):
                predictor.learn(view, windows)

    # -- results

    def peaks(self, names: Sequence[str], nodes: Sequence[NodeModels]) -> PeakBatch:
        """Peaks of `nodes`, called `names`, as of the end of their last windows.

        Raises ValueError without nodes.
        """
        ends = np.array([node.end_ms for node in nodes], np.int64)
        changes = drift.changes(self._slots, _node_slots(nodes), ends, self._drift_ms)
        default = self.config.strategy.predictor
        return predict_peaks(
            names,
            nodes,
            self.models,
            self._slots,
            self.predictors,
            self._horizons,
            default,
            changes,
        )

    def due(self, peaks: PeakBatch, nodes: Sequence[NodeModels]) -> BoolArray:
        """Whether each of `peaks`, those of `nodes`, is to be published, (k,); those count as
        published from now on."""
        terms = [
            publish_policy.terms_hash(node.strategy, decides, self._prediction_settings)
            for node, decides in zip(nodes, peaks.decides, strict=True)
        ]
        return publish_policy.due(
            self._slots,
            _node_slots(nodes),
            publish_policy.watched_values(peaks),
            np.array(terms, np.int64),
            peaks.view.end_ms,
            peaks.view.strategies,
        )

    def ended_peaks(
        self, peaks: PeakBatch, nodes: Sequence[NodeModels]
    ) -> list[tuple[int, EndedPeak]]:
        """Take out the followed peaks of Prod of `nodes` whose horizon is over, each with the
        number of its node, and follow `peaks`, those of `nodes`, where the interval is over."""
        slots, end_ms = _node_slots(nodes), peaks.view.end_ms
        ended = pending_peaks.ended(self._pending, slots, self.schedule, end_ms, [*self.predictors])
        requests = next(iter(peaks.by_predictor.values())).reclaimable.requests
        predicted = {
            name: columns.reclaimable.requests - columns.reclaimable.amount
            for name, columns in peaks.by_predictor.items()
        }
        entered = pending_peaks.enter(
            self._pending, slots, self.schedule, end_ms, requests, predicted
        )
        for i, place in entered:
            self.models.in_cohort[nodes[i].all_rows(), place] = False
            self.models.in_cohort[nodes[i].pod_rows, place] = True
        return ended

    def unfinished_peaks(self, node: NodeModels) -> list[EndedPeak]:
        """Take out the followed peaks of a node that has departed."""
        names = [*self.predictors]
        return pending_peaks.unfinished(self._pending, node.slot, self.schedule, names)

    def retract(self, node: NodeModels) -> None:
        """Mark the peaks of `node` as never published."""
        publish_policy.reset(self._slots, _node_slots([node]))

    def recent_usage(self, nodes: Sequence[NodeModels]) -> usage_points.RecentUsage:
        """Statistics of these nodes over the half hour up to the end of their last windows."""
        points, newest = self._slots["points"], self._slots["points_second"]
        return usage_points.read(points, newest, _node_slots(nodes))

    def usage_percentile(
        self, nodes: Sequence[NodeModels], span_seconds: int, percent: int
    ) -> FloatArray:
        """A percentile of the usage of these nodes in a span that ends with their last windows,
        (k, 2), NaN unknown."""
        points, newest = self._slots["points"], self._slots["points_second"]
        return usage_points.percentile(points, newest, _node_slots(nodes), span_seconds, percent)

    def alert_rows(self, nodes: Sequence[NodeModels]) -> IntArray:
        """The rows of these nodes in `alerts`."""
        return _node_slots(nodes)

    def usage_between(self, node: NodeModels, start_ms: int, end_ms: int) -> FloatArray:
        """Average usage of a node in a part of the half hour before its last window ended, (2,)."""
        points, newest = self._slots["points"], self._slots["points_second"]
        return usage_points.mean_between(points, newest, node.slot, start_ms, end_ms)

    # -- state

    def encode_state(self, name: str, node: NodeModels) -> bytes:
        """The exact state of the models of `node`, called `name`."""
        return saved_models.capture(
            name,
            node,
            self.models,
            self.workloads.models,
            self._slots,
            self.fingerprint,
            alert_columns.pack(self.alerts, node.slot),
            pending_peaks.pack(self._pending, node.slot, self.models.in_cohort[_rows(node)]),
        )

    def encode_workloads(self, name: str, node: NodeModels) -> bytes:
        """The models of the workloads and entities of `node`, called `name`, without its pods and
        columns per node."""
        return saved_models.capture(
            name,
            node.without_pods(),
            self.models,
            self.workloads.models,
            Columns({}),
            self.fingerprint,
            alerts={},
            pending={},
        )

    def decode_state(self, name: str, data: bytes) -> saved_models.CheckedState:
        """The state in `data`, for `restore_node`. Raises CheckpointError if it is damaged, of
        another version, of another node than `name`, or of another fingerprint."""
        return saved_models.read(
            name, data, self.models, self.workloads.models, self._slots, self.fingerprint
        )

    def restore_node(self, state: saved_models.CheckedState) -> NodeModels:
        """A node with the models of a state."""
        node = saved_models.install(
            state, self.models, self.workloads.models, self._slots, self._new_slot()
        )
        alert_columns.unpack(self.alerts, node.slot, state.state.alerts)
        rows = _rows(node)
        in_cohort = self.models.in_cohort[rows]
        pending_peaks.unpack(self._pending, node.slot, state.state.pending, in_cohort)
        self.models.in_cohort[rows] = in_cohort
        return node


def _rows(node: NodeModels) -> IntArray:
    """The rows of the entities of a node and of its pods by UID."""
    pods = [row for _, row in sorted(node.row_by_uid.items())]
    return np.concatenate([node.entity_rows, np.array(pods, np.int64)])


def _node_slots(nodes: Sequence[NodeModels]) -> IntArray:
    return np.array([node.slot for node in nodes], np.int64)


def _row_columns(predictor: Predictor) -> Mapping[str, Column]:
    return predictor.columns


def _columns(
    predictors: Mapping[str, Predictor],
    own: Mapping[str, Column],
    declared: Callable[[Predictor], Mapping[str, Column]],
) -> dict[str, Column]:
    """Our `own` columns and the `declared` ones of the predictors. Raises `PredictorError` if two
    have one name."""
    columns = dict(own)
    for name, predictor in predictors.items():
        if taken := sorted(declared(predictor).keys() & columns.keys()):
            raise PredictorError(f"predictor {name}: column {taken[0]!r} is another one's")
        columns |= declared(predictor)
    return columns
