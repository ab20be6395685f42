"""The join agent: samples and cluster state in, windows out.

The join waits for nothing: a pod that is unknown now is unknown in this window, and a deleted pod
stays known while a window may contain its usage. So one late pod delays no other, and whatever the
join knew is in the window. After a restart the join resumes from its own output: each window
carries the offset of its sample, and windows are appended in the order of their samples, without
holes. A crash between append and acknowledgement repeats nothing, because the join skips samples
below that offset.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from pipeline import tracing
from pipeline.agents.cluster_state import ClusterState
from pipeline.agents.ownership import Ownership
from pipeline.agents.refusals import refuse_records
from pipeline.agents.window_spans import record_joins
from pipeline.errors import (
    FailedSampleError,
    InvalidRecordError,
    KeyMismatchError,
    OversizedRecordError,
    RecordError,
    StateError,
)
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import LogRecord
from pipeline.kafka.producer import LARGEST_VALUE_BYTES, Keyed, Producer
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.join.joined_histories import STEP_MS, joined_histories, prod_workloads
from pipeline.processors.join.joined_outcomes import joined_outcomes
from pipeline.processors.join.node_facts import node_facts
from pipeline.processors.join.pool_means import known_percent
from pipeline.processors.join.sample_join import (
    GAUGES,
    ListingFacts,
    check_not_future,
    join,
    listing_facts,
)
from pipeline.topics.hot_node_policy import DEFAULT_POOL
from pipeline.topics.nodes import KnownNode, Strategy
from pipeline.topics.pod_columns import PodColumns
from pipeline.topics.registry import MAX_SAMPLE_BYTES, SAMPLES, WINDOWS
from pipeline.topics.resource_amounts import is_gauge
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.samples import SampleHeader
from pipeline.topics.windows import (
    NodeFacts,
    Window,
    as_decoded,
    departure,
    encode_window,
    retraction,
)
from pipeline.topics.workload_histories import WorkloadHistoryRecord
from pipeline.topics.workloads import Workload

log = get_logger(__name__)

JOINED = counter("worker_joined_windows", "Samples joined and appended to the log as windows.")
RETRACTIONS = counter("worker_retractions", "Retractions of deleted nodes appended to the log.")
DEPARTURES = counter("worker_departures", "Departures of nodes appended to the log.")
IGNORED = counter("worker_departed_samples", "Samples of deleted nodes that were dropped.")
UNKNOWN = counter(
    "worker_unknown_node_samples",
    "Samples dropped because too many nodes of their partition have no record.",
)
WITHOUT_MEANS = counter(
    "worker_windows_without_pool_means",
    "Windows of nodes with deviation thresholds that were joined without means of their pool.",
)
UNNAMED_CONTAINERS = counter(
    "worker_unnamed_containers",
    "Containers of samples that no record of a pod names: their usage counts for the pod alone.",
)
BAD_VALUES = counter("worker_bad_values", "Invalid values replaced by null.", ["column"])


MAX_UNKNOWN_NODES: Final = 1000
"""Nodes of a partition that may send samples without a record in `nodes`: names cost nothing."""


MAX_FAILING_NODES: Final = 10
"""Nodes of a partition whose samples may fail to be joined within an hour."""
_FAILING_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class JoinRules:
    """The settings that the join needs."""

    prefix: str
    partitions: int
    future_tolerance_seconds: float
    strategy: Strategy


HandOver = Callable[[Sequence[LogRecord]], Awaitable[None]]
"""Takes appended windows in order; their `appended_ms` is that of the last sample."""


class _EncodedWindow(NamedTuple):
    """A window to append. `window` is what decoding `record` would return, if known."""

    record: Keyed
    window: Window | None = None


class _NodeWorkloads(NamedTuple):
    """The workloads of Prod `present` on a node, listed by `pods`, when histories were joined last,
    in `step`."""

    step: int
    pods: PodColumns | None
    present: frozenset[Workload]


_NO_WORKLOADS: Final = _NodeWorkloads(-1, None, frozenset())


class JoinCursor:
    """The join's position in one partition of `samples`.

    `appended_ms` is the newest append time of a joined sample. `unknown_nodes` are the nodes that
    may send samples without a record. Hold `appending` to append to `windows`.
    """

    def __init__(
        self,
        ownership: Ownership,
        next_offset: int,
        cluster_state: ClusterState,
        output: Producer,
        rules: JoinRules,
        hand_over: HandOver,
        unknown_nodes: Iterable[str] = (),
    ) -> None:
        self.ownership = ownership
        self.next_offset = next_offset
        self.appended_ms = 0
        self.cluster_state = cluster_state
        self._output = output
        self._rules = rules
        self._hand_over = hand_over
        self._samples = SAMPLES.full_name(rules.prefix)
        self._windows = WINDOWS.full_name(rules.prefix)
        # Different tasks append windows and departures: their order in the log must be the order
        # in which they are handed over.
        self.appending = asyncio.Lock()
        self.unknown_nodes = set(unknown_nodes)
        self._is_full = False
        self._failing: dict[str, int] = {}
        self._warned: set[str] = set()
        self._pod_facts: dict[str, ListingFacts] = {}
        self._facts: dict[str, tuple[KnownNode, NodeFacts]] = {}
        self._workloads: dict[str, _NodeWorkloads] = {}

    @property
    def owned(self) -> bool:
        return self.ownership.owned

    async def process(self, records: Sequence[LogRecord]) -> None:
        """Append a window for each valid sample, and a dead letter for each invalid one."""
        async with self.appending:
            if not self.owned:
                return
            began = tracing.now()
            windows, refused = self._join(records)
            await refuse_records(self._output, self._rules.prefix, self._samples, refused)
            if not self.ownership.owned:  # revoked while dead letters were written
                return
            if windows:
                await self._append(windows, records[-1].appended_ms)
                JOINED.inc(len(windows))
                if tracing.is_on():
                    joined = [encoded.window for encoded in windows if encoded.window is not None]
                    record_joins(joined, self.ownership.partition, began)
            self.next_offset = records[-1].offset + 1
            self.appended_ms = max(self.appended_ms, records[-1].appended_ms)

    async def idle(self) -> None:
        """Wait until nothing is being appended."""
        async with self.appending:
            pass

    async def retract(self, node: str, deleted_ms: int) -> None:
        """Append the retraction of a node that was just deleted: its models stay."""
        if await self._end(retraction(node, deleted_ms)):
            RETRACTIONS.inc()

    async def depart(self, node: str, appended_ms: int) -> None:
        """Append the departure of a node as of `appended_ms`: its models are dropped."""
        if await self._end(departure(node, appended_ms)):
            DEPARTURES.inc()

    async def _end(self, end: Window) -> bool:
        """Append the end of a node; return whether the partition is still owned.

        Models ignore it if they have applied a window that began after its append time, which is by
        the broker's clock.
        """
        node = end.header.node
        async with self.appending:
            if not self.owned:
                return False
            record = Keyed(node.encode(), encode_window(end))
            await self._append([_EncodedWindow(record)], end.appended_ms)
            self._pod_facts.pop(node, None)
            self._facts.pop(node, None)
            self._workloads.pop(node, None)
            if end.type == "departure":
                self.unknown_nodes.discard(node)
            self._warned &= self.cluster_state.deleted_nodes.keys()
            return True

    async def _append(self, windows: Sequence[_EncodedWindow], appended_ms: int) -> None:
        partition, records = self.ownership.partition, [encoded.record for encoded in windows]
        offsets = await self._output.append(self._windows, partition, records)
        await self._hand_over([
            LogRecord(partition, offset, key, value, appended_ms, window)
            for offset, ((key, value), window) in zip(offsets, windows, strict=True)
        ])  # fmt: skip

    def _join(
        self, records: Sequence[LogRecord]
    ) -> tuple[list[_EncodedWindow], list[tuple[LogRecord, RecordError]]]:
        self.unknown_nodes.difference_update(self.cluster_state.nodes)
        self._is_full &= len(self.unknown_nodes) >= MAX_UNKNOWN_NODES
        windows: list[_EncodedWindow] = []
        refused: list[tuple[LogRecord, RecordError]] = []
        for record in records:
            try:
                window = self._join_sample(record)
            except RecordError as error:
                refused.append((record, error))
            except MemoryError:
                raise
            except Exception as error:  # a bug must not end each worker that takes the partition
                refused.append((record, self._failed(record, error)))
            else:
                if window is not None:
                    windows.append(window)
                    self._failing.pop((record.key or b"").decode(errors="replace"), None)
        return windows, refused

    def _failed(self, record: LogRecord, failure: Exception) -> FailedSampleError:
        """Return the error of a sample that cannot be joined.

        Raises StateError if samples of many nodes fail: then the fault is not theirs.
        """
        node = (record.key or b"").decode(errors="replace")
        since = record.appended_ms - _FAILING_MS
        self._failing = {name: time for name, time in self._failing.items() if time > since}
        self._failing[node] = record.appended_ms
        if len(self._failing) > MAX_FAILING_NODES:
            raise StateError(
                f"samples of more than {MAX_FAILING_NODES} nodes of partition {record.partition} "
                f"cannot be joined: {failure!r:.300}",
                hint="the topic holds all samples: correct the worker, and restart",
            ) from failure
        return FailedSampleError(f"the sample of {node!r:.80} failed: {failure!r:.300}")

    def _join_sample(self, record: LogRecord) -> _EncodedWindow | None:
        """Join one sample; None for a deleted or surplus node. Raises `RecordError`."""
        size = len(record.value or b"")
        if size > MAX_SAMPLE_BYTES:  # the broker compares the compressed size
            raise OversizedRecordError(f"sample has {size} bytes, more than {MAX_SAMPLE_BYTES}")
        sample = read_rows(record.value or b"")
        node = sample.header.node
        if record.key != node.encode():
            raise KeyMismatchError(f"sample of {node!r} has the key {record.key!r:.100}")
        expected = partition_of(node, self._rules.partitions)
        if record.partition != expected:
            raise InvalidRecordError(
                f"sample of {node!r} is in partition {record.partition}, not {expected}",
                hint="set the producer's partitioner to murmur2",
            )
        check_not_future(sample.header, record.appended_ms, self._rules.future_tolerance_seconds)
        # The watcher deleted it. Samples of an exporter that will stop soon do not restore it.
        if node in self.cluster_state.deleted_nodes:
            if node not in self._warned:
                self._warned.add(node)
                log.warning("dropping samples of a deleted node", node=node)
            IGNORED.inc()
            return None
        if not self._may_join(node):
            UNKNOWN.inc()
            return None
        objects = self.cluster_state.objects_of(node)
        pod_facts = listing_facts(sample.listing, objects.pods, self._pod_facts.get(node))
        self._pod_facts[node] = pod_facts
        window = join(
            sample,
            objects,
            self._rules.strategy,
            sample_offset=record.offset,
            appended_ms=record.appended_ms,
            pod_facts=pod_facts,
            facts=self._facts_of(objects.record, sample.header, pod_facts.columns),
        )
        start_ms, end_ms = sample.header.window_start_ms, sample.header.window_end_ms
        if kills := self.cluster_state.oom_kills.joined(node, end_ms):
            facts = msgspec.structs.replace(window.node, oom_kills=kills)
            window = msgspec.structs.replace(window, node=facts)
        self.cluster_state.deleted_pods.joined(node, sample.listing.uids, start_ms, end_ms)
        value = encode_window(window)
        if len(value) > LARGEST_VALUE_BYTES:
            raise OversizedRecordError(f"window of {node!r} has {len(value)} bytes")
        if objects.record is None:
            self.unknown_nodes.add(node)
        UNNAMED_CONTAINERS.inc(pod_facts.unnamed_containers)
        for name, count in window.bad_values.items():
            # Writers may name a gauge anew in every window: a label must not grow with them.
            BAD_VALUES.labels(GAUGES if is_gauge(name) else name).inc(count)
        return _EncodedWindow(Keyed(node.encode(), value), as_decoded(window, value))

    def _may_join(self, node: str) -> bool:
        """Whether a node has a record, or is one of a limited number without."""
        if node in self.cluster_state.nodes or node in self.unknown_nodes:
            return True
        if len(self.unknown_nodes) < MAX_UNKNOWN_NODES:
            return True
        if not self._is_full:
            self._is_full = True
            log.error("too many nodes have no record, dropping samples of further ones",
                      partition=self.ownership.partition, nodes=MAX_UNKNOWN_NODES)  # fmt: skip
        return False

    def _facts_of(
        self, record: KnownNode | None, header: SampleHeader, pods: PodColumns
    ) -> NodeFacts | None:
        """Return the facts of a node, computed once per record: windows come more often. Only means
        and outcomes of its pool, and histories of workloads that come to it, if they are needed,
        depend on the window."""
        if record is None:
            return None
        cached = self._facts.get(record.node)
        if cached is None or cached[0] is not record:
            cached = self._facts[record.node] = record, node_facts(record, self._rules.strategy)
        facts = cached[1]
        policy, state = facts.hot_nodes, self.cluster_state
        outcomes = joined_outcomes(
            state.pool_outcomes.get(DEFAULT_POOL if policy is None else policy.pool),
            header.window_start_ms,
            header.window_end_ms,
        )
        if outcomes is not None:
            facts = msgspec.structs.replace(facts, pool_outcomes=outcomes)
        if histories := self._histories_of(record.node, header, pods):
            facts = msgspec.structs.replace(facts, workload_histories=histories)
        if policy is None or not policy.use_deviation_thresholds:
            return facts
        means = state.pool_means.get(policy.pool)
        percent = known_percent(means, policy, header.window_end_ms)
        if not percent:
            WITHOUT_MEANS.inc()
        policy = msgspec.structs.replace(policy, mean_percent=percent)
        return msgspec.structs.replace(facts, hot_nodes=policy)

    def _histories_of(
        self, node: str, header: SampleHeader, pods: PodColumns
    ) -> tuple[WorkloadHistoryRecord, ...]:
        """Histories of the workloads that came to a node since five minutes of UTC ended last; of
        all its workloads if nothing is known of it yet. The window in which they end may be
        missing."""
        step, before = header.window_end_ms // STEP_MS, self._workloads.get(node, _NO_WORKLOADS)
        if step == before.step:
            return ()
        present = before.present if pods is before.pods else prod_workloads(pods)
        self._workloads[node] = _NodeWorkloads(step, pods, present)
        return joined_histories(
            self.cluster_state.workload_histories, present - before.present, header.window_end_ms
        )
