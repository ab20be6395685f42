"""The learner: all mathematics in the columns that banks share, over many nodes at once.

It trains models with windows and computes peaks, of nodes of any bank, in the columns of a
`NodeStore`. The result for a node depends on the node alone, to the last bit. Banks decide which
nodes there are and which windows count, so that one node's partition may leave without touching
others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from pipeline.errors import PredictorError
from pipeline.processors.arrays import BoolArray, ByteArray, FloatArray, IntArray
from pipeline.processors.model import (
    day_slots,
    drift,
    pending_peaks,
    publish_policy,
    training_samples,
    usage_points,
)
from pipeline.processors.model.entity_models import NEVER
from pipeline.processors.model.histogram import shift_factor, shifted_reference_ms
from pipeline.processors.model.model_config import (
    ENTITIES,
    FIRST_CLASS,
    MAX_USAGE,
    UNKNOWN,
    ModelConfig,
)
from pipeline.processors.model.node_models import NodeModels, node_slots
from pipeline.processors.model.node_peaks import PeakBatch
from pipeline.processors.model.node_store import NodeStore
from pipeline.processors.model.peak_prediction import predict_peaks, view_of
from pipeline.processors.model.pending_peaks import EndedPeak
from pipeline.processors.model.predictor import (
    Predictor,
    WindowUsage,
    check_horizon,
    may_decide,
    named,
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
from pipeline.processors.model.workload_models import (
    EXPIRY_CHECK_MS,
    RETAINED_MS,
    decay_factors,
)
from pipeline.processors.predictors.registry import build

MAX_PODS: Final = 4096
"""Pods of one node with models, as many as a window can list: a state must fit into a record."""


class Learner:
    """The models of the entities of all nodes, and the `predictors` that read them, by name.

    Raises `PredictorError` if the predictors of `config` cannot be created, two of them declare one
    column, or the deciding one does not run or may not decide.
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
        for predictor in self.predictors.values():
            check_horizon(predictor, config.entity_horizon_seconds("prod"))
        self._prediction_settings = config.prediction_settings(self.predictors)
        self.store = store = NodeStore(config, self.predictors)
        self._models, self._workloads = store.models, store.workloads
        self._slots, self._pending, self._schedule = store.slots, store.pending, store.schedule
        self._half_life_ms = [profile.half_life_ms for profile in config.profiles]
        # A change is published for so long, by entity and resource.
        half_lives = np.array([self._half_life_ms[each] for each in store.profiles], np.int64)
        self._drift_ms = half_lives * drift.PUBLISHED_HALF_LIVES
        self._horizons = np.array([config.entity_horizon_seconds(entity) for entity in ENTITIES])

    def expire_pods(self, node: NodeModels) -> tuple[str, ...]:
        """Drop the models of pods that no window has listed for the expiration time, and of the
        longest absent ones beyond `MAX_PODS`. Returns their UIDs, ascending."""
        oldest_ms = node.end_ms - round(self.config.expiration_seconds * 1000)
        seen = {uid: int(self._models.seen_ms[node.row_by_uid[uid]]) for uid in node.absent_uids}
        surplus = max(len(node.row_by_uid) - MAX_PODS, 0)
        longest_absent = sorted(seen, key=lambda uid: (seen[uid], uid))[:surplus]
        outdated = (uid for uid in seen if seen[uid] < oldest_ms)
        expired = tuple(sorted({*longest_absent, *outdated}))
        if expired:
            self._models.release(np.array([node.row_by_uid.pop(uid) for uid in expired], np.int64))
            node.absent_uids = tuple(uid for uid in node.absent_uids if uid in node.row_by_uid)
            for uid in node.pod_oom_kills.keys() & {*expired}:
                del node.pod_oom_kills[uid]
            self.store.containers.assign(node, node.listed)
        return expired

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
            old_ms = node.workload_reference_ms
            self._workloads.move_reference(node, window.end_ms)
            self.store.containers.move_reference(node, old_ms)
        if window.start_ms // EXPIRY_CHECK_MS != window.end_ms // EXPIRY_CHECK_MS:
            self._workloads.expire(node, window.end_ms - RETAINED_MS)
            self.store.containers.expire(node, window.end_ms - RETAINED_MS)
        return enough

    def _covers_enough(self, window: WindowHead) -> bool:
        return window.coverage >= self.config.minimum_coverage

    def _list_pods(self, node: NodeModels, pods: ListedPods) -> None:
        known = node.listed
        has_changed = pods.uids is not known.uids and pods.uids != known.uids
        if has_changed:
            new = [uid for uid in pods.uids if uid not in node.row_by_uid]
            # Their profile is that of their class, which `_assign_profiles` sets.
            rows = self._models.allocate(np.zeros(len(new), np.int8))
            node.row_by_uid.update(zip(new, rows.tolist(), strict=True))
            node.pod_rows = np.array([node.row_by_uid[uid] for uid in pods.uids], dtype=np.int64)
            listed = set(pods.uids)
            node.absent_uids = tuple(uid for uid in node.row_by_uid if uid not in listed)
        if has_changed or pods.workloads != known.workloads:
            self._workloads.assign(node, pods)
        if pods is not known:
            self.store.containers.assign(node, pods)
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
                    rows = rows[self._models.profile[rows] == profile]
                    self._models.shift(rows, r, shift_factor(old, new, half_life_ms))
                references[r] = new

    def learn(self, batch: TrainingBatch, nodes: Sequence[NodeModels]) -> None:
        """Store the facts of these windows (at least one) about distinct nodes and pods, and train
        the models with those that cover enough. `prepare` has seen each window and its node."""
        usage_points.observe(
            self._slots["points"],
            self._slots["points_second"],
            node_slots(nodes),
            np.array([head.start_ms for head in batch.heads], np.int64),
            batch.end_ms,
            [head.points for head in batch.heads],
        )
        training_samples.remember_pods(batch, nodes)
        rows = np.concatenate([node.pod_rows for node in nodes])
        end_ms = batch.end_ms.take(batch.window_index)
        self._assign_profiles(rows, np.concatenate([node.listed.classes for node in nodes]))
        self._models.seen_ms[rows] = end_ms
        covered = [i for i, head in enumerate(batch.heads) if self._covers_enough(head)]
        if covered:
            self._observe_batch(batch.select(covered), [nodes[i] for i in covered])

    def _assign_profiles(self, rows: IntArray, classes: ByteArray) -> None:
        """Give each pod the profile of its class. A pod whose class changes to another profile is
        cleared, for its weights have another meaning there. The class `unknown` changes nothing: a
        lost record must not cost what a pod has learned."""
        if len(self._half_life_ms) == 1:
            return
        wanted = self.store.profiles[FIRST_CLASS + classes]
        changed = np.flatnonzero(self._models.profile.take(rows) != wanted)
        unknown = classes[changed] == UNKNOWN_CLASS
        changed = changed[~unknown | (self._models.last_ms[rows[changed]] == NEVER)]
        if len(changed):
            self._models.clear(rows[changed])
            self._models.profile[rows[changed]] = wanted[changed]

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
            self._models.last_ms[entity_rows[:, UNKNOWN]] != NEVER,
            classes,
            shares,
            short | np.concatenate([node.listed.ended for node in nodes]),
        )
        if self.config.drift != "off":
            shorten = self.config.drift == "shorten"
            training_samples.detect_drift(self._models, self._slots, nodes, values, shorten)
        pending_peaks.follow(
            self._pending, node_slots(nodes), self._schedule, batch,
            pending_peaks.prod_usage(batch, classes, values, shares),
            self._models.in_cohort[np.concatenate([node.pod_rows for node in nodes])],
        )  # fmt: skip
        usage = np.where(per_resource(short), np.nan, usage)
        weights = training_samples.sample_weights(nodes, self._half_life_ms)
        rows = np.concatenate([entity_rows.ravel(), *(node.pod_rows for node in nodes)])
        entity_nodes = np.arange(len(nodes)).repeat(len(ENTITIES))
        node_index = np.concatenate([entity_nodes, batch.window_index])
        # The weight of each row, by its node and profile.
        place = node_index * weights.shape[1] + self._models.profile.take(rows)
        self._train(
            rows,
            np.concatenate([values.reshape(-1, 2), usage]),
            weights.reshape(-1, 2).take(place, axis=0),
            batch.end_ms.take(node_index),
        )
        self._workloads.train(batch, nodes, rows[len(entity_nodes) :], usage)
        self.store.containers.train(batch, nodes, short, decay_factors(nodes))
        self._learn_nodes(batch, nodes, values, usage)

    def _train(
        self, rows: IntArray, values: FloatArray, weights: FloatArray, end_ms: IntArray
    ) -> None:
        """Add one sample to each row: histogram, moments, day slots, then the predictors.
        Raises `PredictorError`, which names the predictor, if one fails."""
        self._models.train(rows, values, weights, end_ms)
        store = self._models.store
        day_slots.observe(store["recent"], store["recent_slot"], rows, values, end_ms)
        for predictor in self.predictors.values():
            with named(predictor):
                predictor.observe(self._models, rows, values, end_ms)

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
        view = view_of(nodes, self._models, self._slots, self._horizons)
        lengths_ms = batch.end_ms - np.array([head.start_ms for head in batch.heads], np.int64)
        uids = [node.listed.uids for node in nodes]
        workloads = [node.listed.workloads for node in nodes]
        pooled = [head.pool_outcomes for head in batch.heads]
        histories = [head.workload_histories for head in batch.heads]
        windows = WindowUsage(lengths_ms, entities, pods, uids, workloads, pooled, histories)
        for predictor in learners:
            with named(predictor):
                predictor.learn(view, windows)

    # -- results

    def peaks(self, names: Sequence[str], nodes: Sequence[NodeModels]) -> PeakBatch:
        """Peaks of `nodes`, called `names`, as of the end of their last windows.

        Raises ValueError without nodes.
        """
        ends = np.array([node.end_ms for node in nodes], np.int64)
        changes = drift.changes(self._slots, node_slots(nodes), ends, self._drift_ms)
        default = self.config.strategy.predictor
        return predict_peaks(
            names,
            nodes,
            self._models,
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
            node_slots(nodes),
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
        slots, end_ms = node_slots(nodes), peaks.view.end_ms
        ended = pending_peaks.ended(
            self._pending, slots, self._schedule, end_ms, [*self.predictors]
        )
        requests = next(iter(peaks.by_predictor.values())).reclaimable.requests
        predicted = {
            name: columns.reclaimable.requests - columns.reclaimable.amount
            for name, columns in peaks.by_predictor.items()
        }
        entered = pending_peaks.enter(
            self._pending, slots, self._schedule, end_ms, requests, predicted
        )
        for i, place in entered:
            self._models.in_cohort[nodes[i].all_rows(), place] = False
            self._models.in_cohort[nodes[i].pod_rows, place] = True
        return ended

    def unfinished_peaks(self, node: NodeModels) -> list[EndedPeak]:
        """Take out the followed peaks of a node that has departed."""
        names = [*self.predictors]
        return pending_peaks.unfinished(self._pending, node.slot, self._schedule, names)

    def retract(self, node: NodeModels) -> None:
        """Mark the peaks of `node` as never published."""
        publish_policy.reset(self._slots, node_slots([node]))

    def recent_usage(self, nodes: Sequence[NodeModels]) -> usage_points.RecentUsage:
        """Statistics of these nodes over the half hour up to the end of their last windows."""
        points, newest = self._slots["points"], self._slots["points_second"]
        return usage_points.read(points, newest, node_slots(nodes))

    def usage_percentile(
        self, nodes: Sequence[NodeModels], span_seconds: int, percent: int
    ) -> FloatArray:
        """A percentile of the usage of these nodes in a span that ends with their last windows,
        (k, 2), NaN unknown."""
        points, newest = self._slots["points"], self._slots["points_second"]
        return usage_points.percentile(points, newest, node_slots(nodes), span_seconds, percent)

    def usage_between(self, node: NodeModels, start_ms: int, end_ms: int) -> FloatArray:
        """Average usage of a node in a part of the half hour before its last window ended, (2,)."""
        points, newest = self._slots["points"], self._slots["points_second"]
        return usage_points.mean_between(points, newest, node.slot, start_ms, end_ms)
