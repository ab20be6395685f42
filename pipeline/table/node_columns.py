"""The columns of the state table: each is declared once in `COLUMNS`, with name, unit, type and how
its value is read from the records of a node.

docs/how-to/add-a-node-state-field.md has the steps from a sample to a column.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from pipeline.errors import InvalidRecordError
from pipeline.processors.join.node_facts import raw_allocatable
from pipeline.processors.kubernetes.node_reservation import Reservation, valid_reservation
from pipeline.processors.kubernetes.object_records import OFFERED
from pipeline.processors.loadaware.node_thresholds import ANNOTATION as USAGE_THRESHOLDS
from pipeline.processors.loadaware.node_thresholds import problem as thresholds_problem
from pipeline.processors.model.usage_anomalies import is_doubtful
from pipeline.processors.overcommit.offer_bounds import (
    BOUNDED,
    NOTHING,
    BatchPart,
    MidPart,
    OfferBounds,
    OfferTerms,
    offer_bounds,
)
from pipeline.table import limits
from pipeline.table.recent_rates import RecentRates
from pipeline.times import parse_time
from pipeline.topics.node_state import AGGREGATED, DEVIATION, AggregatedUsage, NodeStateRecord
from pipeline.topics.nodes import KnownNode, Taint
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import BATCH, MID, RATES, Resources, Scalars, Usage
from pipeline.topics.result_header import Result

_NOTHING: Final = Usage()
_NO_PODS: Final = Usage(cpu_cores=0.0, memory_bytes=0.0)


class TableNode(KnownNode, frozen=True, kw_only=True, gc=False):
    """The fields of a `NodeRecord` that the table reads; `is_watched`: the watcher wrote it."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    scalars: Scalars | None = None
    is_watched: bool = False


class OfferedResources(Result, frozen=True, kw_only=True, gc=False):
    """The fields of a `NodeResourcesRecord` that the table reads."""

    window_seconds: float = 0.0
    mid: Resources | None = None
    mid_lower_bound: Resources | None = None
    batch: Resources | None = None
    mid_terms: MidPart = MidPart()
    batch_terms: BatchPart = BatchPart()
    strategy: Overcommit = Overcommit()


class NodeRecords(NamedTuple):
    """The newest record of each topic about one node; None: the topic has none. `rates` are
    network and disk rates of its last windows."""

    state: NodeStateRecord | None = None
    node: TableNode | None = None
    resources: OfferedResources | None = None
    rates: RecentRates | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `get` reads its value from the records of a node, None is unknown. `record` names
    the field of `NodeRecords` that it reads, if it reads only one: while that is unchanged, so is
    the value. Unknown values are stored as NaN in columns of floats, else as False or 0."""

    name: str
    unit: str
    get: Callable[[NodeRecords], float | bool | None]
    dtype: type = np.float64
    record: str = ""

    @property
    def missing(self) -> float | bool | int:
        if self.dtype is np.float64:
            return np.nan
        return False if self.dtype is np.bool_ else 0


def _of_state(name: str, unit: str, get: Callable[[NodeStateRecord], Any]) -> Column:
    return Column(
        name, unit, lambda row: None if row.state is None else get(row.state), record="state"
    )


def _offered(name: str, unit: str, get: Callable[[OfferedResources], float | None]) -> Column:
    return Column(
        name, unit, lambda row: get(row.resources) if row.resources else None, record="resources"
    )


def _flag(name: str, get: Callable[[NodeStateRecord], bool]) -> Column:
    return Column(
        name, "flag", lambda row: row.state is not None and get(row.state), np.bool_, "state"
    )


def _usage(name: str, get: Callable[[NodeStateRecord], Usage]) -> tuple[Column, Column]:
    return (
        _used(f"{name}_cpu_cores", "cores", lambda state: get(state).cpu_cores),
        _used(f"{name}_memory_bytes", "bytes", lambda state: get(state).memory_bytes),
    )


def _used(name: str, unit: str, get: Callable[[NodeStateRecord], float | None]) -> Column:
    return _of_state(name, unit, lambda state: _within_bounds(get(state)))


def _within_bounds(used: float | None) -> float | None:
    """None for an amount that no node can use."""
    return used if used is not None and 0 <= used <= limits.LARGEST_USAGE else None


def _over_spans(field: str, spans: Iterable[str], *statistics: str) -> Iterator[Column]:
    """Statistics of usage over each span, from a field of node states that has them by span."""
    for span, statistic in product(spans, statistics):

        def get(state: NodeStateRecord, span: str = span, statistic: str = statistic) -> Usage:
            usage: Usage = getattr(getattr(state, field).get(span), statistic, _NOTHING)
            return usage

        yield from _usage(f"usage_{statistic}_{span}", get)


def _rate(name: str) -> Column:
    return _used(f"usage_{name}", "bytes per second", lambda state: state.rates.get(name))


def gauge_column(name: str) -> Column:
    """Usage of an extended resource, for a table whose reader judges it."""

    def get(state: NodeStateRecord) -> float | None:
        value = state.gauges.get(name)
        return value if value is not None and 0 <= value <= limits.LARGEST_WHOLE else None

    return _of_state(f"usage_{name}", f"units of {name}", get)


def _recent_rates() -> Iterator[Column]:
    """Mean and deviation of each rate over each span."""
    places = product(enumerate(DEVIATION), enumerate(("mean", "stdev")), enumerate(RATES))
    for (i, span), (j, statistic), (k, name) in places:

        def get(row: NodeRecords, place: tuple[int, int, int] = (i, j, k)) -> float | None:
            return None if row.rates is None else float(row.rates.statistics[place])

        column = f"usage_{statistic}_{span}_{name}"
        yield Column(column, "bytes per second", get, record="rates")


def _prod_usage(state: NodeStateRecord) -> Usage:
    """No usage where the node has no Prod pods; unknown where it has pods of unknown class."""
    return state.class_usage.get("prod", _NOTHING if state.unknown_pods else _NO_PODS)


def _hot_since(state: NodeStateRecord) -> float | None:
    """When the first open alert was opened; None without one."""
    return min((parse_time(alert.since) for alert in state.alerts), default=None)


def _peak(state: NodeStateRecord) -> Usage:
    return state.peaks.get(state.predictor, _NOTHING)


def allocatable(row: NodeRecords) -> Usage:
    """Allocatable of the Node as it is now, else as of the last window, else capacity; unknown
    where none of them has it. Each resource on its own."""
    state = row.state
    usual = _first_known(state.allocatable, state.capacity) if state else _NOTHING
    return _first_known(_usage_of(row.node.allocatable), usual) if row.node else usual


def capacity(row: NodeRecords) -> Usage:
    """Capacity of the Node as it is now, else as of the last window."""
    usual = row.state.capacity if row.state else _NOTHING
    return _first_known(_usage_of(row.node.capacity), usual) if row.node else usual


def raw(row: NodeRecords) -> Usage:
    """Allocatable before amplification."""
    usual = allocatable(row)
    return _first_known(_usage_of(raw_allocatable(row.node)), usual) if row.node else usual


def limited(node: TableNode) -> TableNode:
    """The record without resources beyond `MAX_NODE_RESOURCES`, in the order of their names."""
    scalars = node.scalars or {}
    if len(scalars) <= limits.MAX_NODE_RESOURCES:
        return node
    first = sorted(scalars.items())[: limits.MAX_NODE_RESOURCES]
    return msgspec.structs.replace(node, scalars=dict(first))


def scalars_of(row: NodeRecords) -> Scalars:
    """Allocatable of all resources other than cpu and memory. Mid and Batch are those of the newest
    record of resources, because records of Nodes lack them."""
    scalars = dict(row.node.scalars or {}) if row.node else {}
    offers = (row.resources.mid, row.resources.batch) if row.resources else ()
    for names, offer in zip((MID, BATCH), offers, strict=False):
        if offer is not None:
            amounts = zip(names, (offer.cpu_millicores, offer.memory_bytes), strict=True)
            scalars |= {name: amount for name, amount in amounts if amount is not None}
    return scalars


def _usage_of(amounts: Resources) -> Usage:
    return Usage(cpu_cores=_cores(amounts.cpu_millicores), memory_bytes=amounts.memory_bytes)


def _first_known(first: Usage, second: Usage) -> Usage:
    """Each resource of `first`, else of `second`."""
    cpu, memory = first.cpu_cores, first.memory_bytes
    return Usage(
        cpu_cores=second.cpu_cores if cpu is None else cpu,
        memory_bytes=second.memory_bytes if memory is None else memory,
    )


def _reserved(row: NodeRecords) -> Reservation:
    """What the Node's annotation reserves from requests of pods; nothing if it is invalid."""
    reserved = valid_reservation(row.node.annotations) if row.node else Reservation()
    return reserved if reserved.trims_allocatable else Reservation()


def _has_invalid_thresholds(row: NodeRecords) -> bool:
    annotation = row.node.annotations.get(USAGE_THRESHOLDS) if row.node else None
    return thresholds_problem(annotation) is not None


class _Bounds:
    """The bounds of the node that was last asked about: many columns read them, one by one."""

    def __init__(self) -> None:
        self._of: tuple[OfferedResources | None, TableNode | None] = None, None
        self._bounds: OfferBounds | None = None

    def __call__(self, row: NodeRecords) -> OfferBounds | None:
        """None without a record, if what the Node offers is not known to be ours."""
        offered, node = row.resources, row.node
        if self._of[0] is not offered or self._of[1] is not node:
            self._of, self._bounds = (offered, node), _bounds(offered, node)
        return self._bounds


def _bounds(offered: OfferedResources | None, node: TableNode | None) -> OfferBounds | None:
    annotations = node.annotations if node else {}
    is_ours = OFFERED in annotations
    if is_ours and (offered is None or node is None or node.overcommit is None):
        # Withdrawn: an actuator that runs removes what the Node offers.
        return OfferBounds(NOTHING, NOTHING, NOTHING)
    if offered is None:
        return None
    terms = OfferTerms(
        offered.mid, offered.mid_lower_bound, offered.batch, offered.mid_terms,
        offered.batch_terms, offered.strategy,
    )  # fmt: skip
    return offer_bounds(terms, annotations)


_bounds_of: Final = _Bounds()


def bound_column(stage: str, resource: str) -> str:
    """The column with a bound on requests of `resource`; `stage` is a field of `OfferBounds`."""
    return f"{stage} {resource}"


def _bound_columns() -> Iterator[Column]:
    for stage, (index, resource) in product(OfferBounds._fields, enumerate(BOUNDED)):

        def get(row: NodeRecords, stage: str = stage, index: int = index) -> float | None:
            bounds = _bounds_of(row)
            return None if bounds is None else getattr(bounds, stage)[index]

        yield Column(bound_column(stage, resource), "millicores or bytes", get)


def _time(text: str | None) -> float | None:
    return None if text is None else parse_time(text)


def _cores(millicores: int | None) -> float | None:
    return None if millicores is None else millicores / 1000


COLUMNS: Final[tuple[Column, ...]] = (
    _of_state("as_of_seconds", "seconds since 1970", lambda state: parse_time(state.as_of)),
    _of_state("window_seconds", "seconds", lambda state: state.window_seconds),
    _of_state("coverage", "share, 0 to 1", lambda state: state.coverage),
    Column("allocatable_cpu_cores", "cores", lambda row: allocatable(row).cpu_cores),
    Column("allocatable_memory_bytes", "bytes", lambda row: allocatable(row).memory_bytes),
    Column("capacity_cpu_cores", "cores", lambda row: capacity(row).cpu_cores),
    Column("capacity_memory_bytes", "bytes", lambda row: capacity(row).memory_bytes),
    *_usage("usage", lambda state: state.usage),
    *_usage("system_usage", lambda state: state.system_usage),
    *_over_spans("aggregated", AGGREGATED, *AggregatedUsage.__struct_fields__),
    *_over_spans("deviation", DEVIATION, "mean", "stdev"),
    *(_rate(name) for name in RATES),
    *_recent_rates(),
    *_usage("prod_usage", _prod_usage),
    *_usage("peak", _peak),
    *_usage("prod_peak", lambda state: state.prod_peak),
    *_usage("prod_reclaimable", lambda state: state.prod_reclaimable),
    _of_state("pods", "pods", lambda state: state.pods),
    _of_state("unknown_pods", "pods", lambda state: state.unknown_pods),
    _of_state("gaps", "windows", lambda state: state.counters.gaps),
    _of_state(
        "last_gap_seconds", "seconds since 1970", lambda state: _time(state.counters.last_gap_at)
    ),
    _of_state(
        "last_bad_value_seconds",
        "seconds since 1970",
        lambda state: _time(state.counters.last_bad_value_at),
    ),
    Column("raw_cpu_cores", "cores", lambda row: raw(row).cpu_cores),
    Column("raw_memory_bytes", "bytes", lambda row: raw(row).memory_bytes),
    Column("reserved_cpu_cores", "cores", lambda row: _cores(_reserved(row).cpu_millicores)),
    Column("reserved_memory_bytes", "bytes", lambda row: _reserved(row).memory_bytes),
    Column("has_node", "flag", lambda row: row.node is not None, np.bool_, "node"),
    Column(
        "is_watched", "flag", lambda row: bool(row.node and row.node.is_watched), np.bool_, "node"
    ),
    Column("invalid_thresholds", "flag", _has_invalid_thresholds, np.bool_, "node"),
    _offered(
        "offered_as_of_seconds", "seconds since 1970", lambda offered: parse_time(offered.as_of)
    ),
    _offered("offered_window_seconds", "seconds", lambda offered: offered.window_seconds),
    _offered(
        "offer_degrades_seconds",
        "seconds",
        lambda offered: 60.0 * offered.strategy.degrade_time_minutes,
    ),
    *_bound_columns(),
    _of_state("hot_since_seconds", "seconds since 1970", _hot_since),
    _flag("simulated", lambda state: state.simulated),
    _flag("peak_counts_requests", lambda state: state.peak_counts_requests),
    _flag("doubtful_usage", is_doubtful),
    _flag("disputed", lambda state: state.dispute is not None),
    _flag("node_known", lambda state: state.node_known),
)
"""Every column of the table. A column that is read from a further topic needs a field of
`NodeRecords`, and that topic in the feed."""

COUNTED_WHOLE: Final = frozenset(
    f"{kind}_{resource}"
    for kind in ("allocatable", "capacity", "raw")
    for resource in ("cpu_cores", "memory_bytes")
)
"""Columns that the table also stores in whole units, to be compared with requests."""


def whole(column: Column) -> Column:
    """A column of cores or bytes in whole millicores or bytes."""
    scale = 1000.0 if column.unit == "cores" else 1.0

    def amount(row: NodeRecords) -> int:
        value = (column.get(row) or 0.0) * scale
        return round(value) if 0 < value <= limits.LARGEST_WHOLE else 0

    return Column(f"whole {column.name}", f"whole {column.unit}", amount, np.int64, column.record)


def value_of(column: Column, records: NodeRecords) -> float | bool:
    """The value of the column for these records. Raises `InvalidRecordError` if it is no number."""
    try:
        value = column.get(records)
        if value is None:
            return column.missing
        number = float(value)
    except (ValueError, OverflowError) as error:
        raise InvalidRecordError(f"{column.name} is not readable: {error}") from error
    return number if math.isfinite(number) else column.missing
