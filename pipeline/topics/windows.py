"""`springtide.windows`: the log of record, samples joined with facts about the node and its pods.

Only the join agent writes this topic, keyed by node name. Models, peaks and node states are a pure
function of it: a replay after a crash gives the same bytes. A window carries the offset of its
sample, so that the join finds in its own output where to continue. A *departure* records that a
node was deleted.

A record is lines of JSON and the sample: a head, `NodeFacts`, `PodColumns`, then the record of
`springtide.samples` as it was read. A departure is the head alone. Lines that repeat are decoded
once.
"""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Annotated, Final, Literal

import msgspec
import numpy as np

from pipeline.errors import InvalidRecordError, UndecodableRecordError
from pipeline.topics.codec import (
    DECODE_ERRORS,
    Record,
    check_readable,
    decode_error,
    decode_json,
    encode_json,
)
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import Strategy, check_node_name
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.pod_columns import CLASSES as CLASSES
from pipeline.topics.pod_columns import (
    DecodedPods,
    PodColumns,
    encode_pod_columns,
    read_pod_columns,
)
from pipeline.topics.pool_outcomes import PoolOutcomesRecord
from pipeline.topics.resource_amounts import LARGEST_AMOUNT, Resources
from pipeline.topics.sample_rows import FloatArray, Listing, SampleRows, read_rows
from pipeline.topics.samples import Origin, SampleBatch, SampleHeader, encode_samples
from pipeline.topics.workload_histories import WorkloadHistoryRecord

POD_COLUMNS: Final = DecodedPods.__struct_fields__

MOST_HISTORIES: Final = 64
"""Histories of workloads in a window: at most 50 KB."""

MOST_OOM_KILLS: Final = 64
"""OOM kills in a window: at most 10 KB."""

_CACHED_NODES: Final = 16_384
_CACHED_BYTES: Final = 4_096


_Bytes = Annotated[float, msgspec.Meta(ge=0.0, le=float(LARGEST_AMOUNT))]


class OomKill(msgspec.Struct, frozen=True, kw_only=True):
    """The last OOM kill of a container of a pod.

    `pod` is the UID in the name of its cgroup, `killed_ms` the time in milliseconds since 1970 by
    the clock of the node, and `request_bytes` is the memory request of the pod. `container` is the
    name of the container, empty in windows of older releases, and `container_request_bytes` its own
    request.
    """

    pod: str
    killed_ms: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
    request_bytes: _Bytes = 0.0
    container: str = ""
    container_request_bytes: _Bytes = 0.0


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about the node at the time of the join; `known` is false if it has no record.

    `allocatable` is the amount before amplification. `overcommit` is None if the node has no Mid or
    Batch resources. `reserved` comes from the node's reservation annotation, `host_apps` are the
    classes of host applications by name. `unmeasured` are the requests, summed by class, of pods
    that run or will run and that the sample lacks. `hot_nodes` are the thresholds above which the
    node counts as hot; None: it never does. `pool_outcomes` are those of the node's pool, in a
    window every half hour; `workload_histories` those of workloads that came to the node, in the
    window after. `oom_kills` are in all windows of ten minutes, because models do not apply every
    window.
    """

    known: bool = False
    allocatable: Resources = Resources()
    capacity: Resources = Resources()
    strategy: Strategy = Strategy()
    strategy_hash: str = ""
    overcommit: Overcommit | None = None
    reserved: Resources = Resources()
    host_apps: dict[str, str] = msgspec.field(default_factory=dict)
    unmeasured: dict[str, Resources] = msgspec.field(default_factory=dict)
    hot_nodes: HotNodePolicy | None = None
    pool_outcomes: PoolOutcomesRecord | None = None
    workload_histories: Annotated[
        tuple[WorkloadHistoryRecord, ...], msgspec.Meta(max_length=MOST_HISTORIES)
    ] = ()
    oom_kills: Annotated[tuple[OomKill, ...], msgspec.Meta(max_length=MOST_OOM_KILLS)] = ()


class WindowRows:
    """The rows of a window: the `sample`, and facts about its `pods` in order of their UIDs."""

    def __init__(self, sample: SampleRows, pods: PodColumns) -> None:
        self.sample = sample
        self.pods = pods

    def __len__(self) -> int:
        return len(self.sample)

    @property
    def listing(self) -> Listing:
        """The entities of the rows."""
        return self.sample.listing

    @cached_property
    def ages(self) -> FloatArray:
        """Seconds from each pod's creation to the window's end, (pods,); NaN is unknown."""
        end = self.sample.header.window_end_ms / 1000
        return np.maximum(end - self.pods.created, 0.0)


RecordType = Literal["window", "retraction", "departure"]
"""A window, or the end of a node: a retraction withdraws its results when it was deleted, a
departure drops its models."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the log; a retraction or departure has only the row of the node.

    `sample_offset` is the offset of its sample (-1 without a sample), `appended_ms` the time at
    which the broker appended the sample. `bad_values` counts the values replaced with null, by
    column.
    """

    type: RecordType
    header: SampleHeader
    rows: WindowRows
    node: NodeFacts
    sample_offset: int
    appended_ms: int
    bad_values: Mapping[str, int]

    @property
    def began_ms(self) -> int:
        """When the window began, by the broker's clock. The end of a node before it is outdated: a
        worker that was paused writes what it knew of the node back then."""
        return self.appended_ms - (self.header.window_end_ms - self.header.window_start_ms)

    def may_follow(self, origin: Origin, began_ms: int, length_ms: int) -> bool:
        """Whether this window counts after the last one, which is of `origin`, began at `began_ms`
        and is `length_ms` long. An exporter is believed in place of a provider at once, any other
        source when a window is missing by the broker's clock; else both would alternate."""
        is_same = self.header.origin == origin
        is_better = bool(self.header.machine_id) and not origin[0]
        return is_same or is_better or self.began_ms - began_ms >= 2 * length_ms


class _Head(Record, frozen=True, kw_only=True):
    """First line of a record. `node` is empty in a window: its sample has the name."""

    type: RecordType
    sample_offset: Annotated[int, msgspec.Meta(ge=-1, le=1 << 53)]
    appended_ms: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
    node: str = ""
    bad_values: dict[str, int] = msgspec.field(default_factory=dict)


_json = msgspec.json.Encoder(order="deterministic")
_node_facts = msgspec.json.Decoder(NodeFacts)


def retraction(node: str, appended_ms: int) -> Window:
    """The record by which the models learn that `node` was deleted: its results are withdrawn."""
    return _end_of_node("retraction", node, appended_ms)


def departure(node: str, appended_ms: int) -> Window:
    """The record by which the models of `node` are dropped."""
    return _end_of_node("departure", node, appended_ms)


def _end_of_node(record_type: RecordType, node: str, appended_ms: int) -> Window:
    header = SampleHeader(
        node=node, machine_id="", boot_id="", epoch=0, sequence=0,
        window_start_ms=0, window_end_ms=1,
    )  # fmt: skip
    sample = encode_samples(SampleBatch(header, [{"kind": "node", "id": ""}]))
    return Window(
        type=record_type,
        header=header,
        rows=WindowRows(read_rows(sample), encode_pod_columns(DecodedPods(pod_class=()))),
        node=NodeFacts(),
        sample_offset=-1,
        appended_ms=appended_ms,
        bad_values={},
    )


def encode_window(window: Window) -> bytes:
    """Encode a record of the log; equal records are equal bytes."""
    has_sample = window.type == "window"
    head = encode_json(
        _Head(
            type=window.type,
            sample_offset=window.sample_offset,
            appended_ms=window.appended_ms,
            node="" if has_sample else window.header.node,
            bad_values=dict(window.bad_values),
        )
    )
    if not has_sample:
        return head
    rows = window.rows
    return b"\n".join((head, encode_node_facts(window.node), rows.pods.data, rows.sample.data))


def decode_window(data: bytes) -> Window:
    """Decode a record of `springtide.windows`. Raises `UndecodableRecordError`,
    `InvalidRecordError` or `UnsupportedVersionError`."""
    check_readable(data)
    lines = data.split(b"\n", 3)
    head = decode_json(_Head, lines[0])
    if head.type != "window":
        check_node_name(head.node)
        return _end_of_node(head.type, head.node, head.appended_ms)
    if len(lines) < 4:
        raise UndecodableRecordError("window ends before its sample")
    rows = WindowRows(read_rows(lines[3]), read_pod_columns(lines[2]))
    if len(rows.pods) != len(rows.listing.uids):
        raise InvalidRecordError(
            f"window has facts about {len(rows.pods)} of {len(rows.listing.uids)} pods"
        )
    for ids, names in zip(rows.listing.container_ids, rows.pods.container_names, strict=False):
        if ids and names is not None and len(names) != len(ids):
            raise InvalidRecordError(f"window names {len(names)} of {len(ids)} containers")
    return Window(
        type=head.type,
        header=rows.sample.header,
        rows=rows,
        node=read_node_facts(lines[1]),
        sample_offset=head.sample_offset,
        appended_ms=head.appended_ms,
        bad_values=head.bad_values,
    )


def as_decoded(window: Window, data: bytes) -> Window:
    """What `decode_window(data)` returns, without decoding the rows again; `data` must be
    `encode_window(window)`, and the rows must come from `read_rows` and `read_pod_columns`."""
    end = data.index(b"\n")
    head, facts = data[:end], data[end + 1 : data.index(b"\n", end + 1)]
    return msgspec.structs.replace(
        window, node=read_node_facts(facts), bad_values=decode_json(_Head, head).bad_values
    )


def sample_offset_of(data: bytes) -> int:
    """Decode only the sample's offset of a record of `springtide.windows`, -1 without one."""
    check_readable(data)
    end = data.find(b"\n")
    return decode_json(_Head, data if end < 0 else data[:end]).sample_offset


def encode_node_facts(facts: NodeFacts) -> bytes:
    """Encode facts about a node as one line of JSON."""
    return _json.encode(facts)


def read_node_facts(line: bytes) -> NodeFacts:
    """Decode the line that `encode_node_facts` returned; equal lines usually give one object.

    Raises `UndecodableRecordError` or `InvalidRecordError`.
    """
    # Those with the outcomes of a pool come once in half an hour, and not again.
    is_usual = len(line) <= _CACHED_BYTES and not any(name in line for name in _SELDOM)
    return _cached_facts(line) if is_usual else _decode_facts(line)


_SELDOM: Final = (b'"pool_outcomes"', b'"workload_histories"')


def _decode_facts(line: bytes) -> NodeFacts:
    try:
        return _node_facts.decode(line)
    except DECODE_ERRORS as error:
        raise decode_error("the line about the node", error) from error


_cached_facts = lru_cache(maxsize=_CACHED_NODES)(_decode_facts)
