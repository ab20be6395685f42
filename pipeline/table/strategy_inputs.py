"""Nodes and pods of the state table as columns for the strategies that choose pods to move."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray
from pipeline.processors.descheduling.cluster_columns import (
    NO_CAPS,
    ClusterNodes,
    ClusterPods,
    MoveCaps,
)
from pipeline.processors.descheduling.configured_strategies import PoolNodes
from pipeline.processors.descheduling.low_node_load import NodePool
from pipeline.processors.descheduling.pod_order import pod_ranks
from pipeline.processors.kubernetes.node_reservation import ANNOTATION as RESERVATION
from pipeline.processors.kubernetes.node_reservation import valid_reservation
from pipeline.processors.kubernetes.pod_classes import COUNTED_AS_PROD
from pipeline.processors.loadaware.pod_amounts import Counting, pod_limits
from pipeline.processors.model.rank_percentiles import parse_percentile
from pipeline.table.limits import LARGEST_USAGE
from pipeline.table.node_columns import NodeRecords, TableNode
from pipeline.table.node_names import RowArray
from pipeline.table.pod_history import PodHistory
from pipeline.table.state_table import Table
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.hot_node_policy import SHORT_SPAN_SECONDS
from pipeline.topics.node_state import AGGREGATED, NodeStateRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Usage, by_name

MEASURED: Final = ("cpu", "memory", "pods")
"""Resources whose usage on a node is known."""
_COLUMNS: Final = {"cpu": ("cpu_cores", 1000.0), "memory": ("memory_bytes", 1.0)}
_NO_POOL: Final = NodePool()
_NOTHING: Final = Usage(cpu_cores=0.0, memory_bytes=0.0)
_SPANS: Final = {seconds: name for name, seconds in AGGREGATED.items()}


def cluster_nodes(
    table: Table, names: Sequence[str], now: float, expiration_seconds: float,
    pools: Callable[[Sequence[Mapping[str, str]]], Sequence[PoolNodes]], *, by_alerts: bool = False,
) -> ClusterNodes:  # fmt: skip
    """The columns of these nodes. Their usage is what their pool compares, that of a node without a
    pool the average over five minutes; `pools` gets the labels of the nodes. Usage older than
    `expiration_seconds` is unknown. Where the average over the span is unknown, as just after the
    first windows of a node, and always over the shortest span, that of the last window counts, for
    its pods, too (`is_last_window`).

    Requests are held to allocatable without what the Node's annotation reserves from them. Capacity
    is allocatable before amplification without what it reserves for processes outside of
    Kubernetes; what these use of it counts as no usage. Usage of Prod is what detection compares,
    if the pool compares the same as the record of the node; else that of the last window. Pods of
    no or unknown class count as Prod, as in alerts. With `by_alerts` the usage that an open alert
    compares is that of the alert.
    """
    table.bring_up_to_date(now)
    rows = table.lookup(names)
    records = [table.records(int(row)) for row in rows]
    nodes = [record.node for record in records]
    labels = [{} if node is None else node.labels for node in nodes]
    resources = (*MEASURED, *(name for name in _counted(table) if name not in MEASURED))
    usage = np.full((len(rows), len(resources)), np.nan)
    is_last = np.zeros((len(rows), 2), np.bool_)
    usage[:, :2], is_last[:] = _compared(table, rows, _NO_POOL)
    pool_of: list[NodePool | None] = [None] * len(rows)
    for pool, is_member in pools(labels):
        usage[is_member, :2], is_last[is_member] = _compared(table, rows[is_member], pool)
        for place in np.flatnonzero(is_member).tolist():
            pool_of[place] = pool
    prod_usage = np.full_like(usage, np.nan)
    of_prod = np.array([_prod_usage(record.state) for record in records], np.float64)
    prod_usage[:, :2] = of_prod.reshape(len(rows), 2)
    peak = np.full_like(usage, np.nan)
    peak[:, :2] = _measured(table, rows, "peak")
    capacity = _amounts(table, rows, resources, "raw")
    for place, record in enumerate(records):
        reserved = _reserved(record.node)
        if reserved is not None:
            capacity[place, :2] = np.maximum(capacity[place, :2] - reserved, 0.0)
            inside = np.nan_to_num(np.minimum(_outside_usage(record.state), reserved))
            for used in (usage[place], peak[place]):
                used[:2] = np.maximum(used[:2] - inside, 0.0)
        of_node = usage[place], prod_usage[place], is_last[place]
        alerts = record.state.alerts if by_alerts and record.state is not None else ()
        for alert in alerts:
            is_last[place, MEASURED.index(_resource_of(alert))] = False
        _take_detected(record, pool_of[place], capacity[place], *of_node)
        _take_alerts(alerts, capacity[place], usage[place], prod_usage[place])
    usage[:, 2] = table.pods.sums_of("pods", rows)
    stale = ~table.fresh(rows, now, expiration_seconds)
    usage[stale] = prod_usage[stale] = np.nan
    allocatable = _amounts(table, rows, resources, "allocatable")
    from_requests = np.nan_to_num(_measured(table, rows, "reserved"))
    allocatable[:, :2] = np.maximum(allocatable[:, :2] - from_requests, 0.0)
    # A node that states no number of pods is not limited by it.
    allocatable[allocatable[:, 2] == 0, 2] = np.inf
    capacity[capacity[:, 2] == 0, 2] = np.nan
    taken = table.taken_cpus()
    return ClusterNodes(
        names=names,
        resources=resources,
        capacity=capacity,
        usage=np.rint(usage),
        prod_usage=np.rint(prod_usage),
        allocatable=allocatable,
        requested=_requested(table, rows, resources),
        is_cordoned=np.array([node is None or node.unschedulable for node in nodes], np.bool_),
        labels=labels,
        taints=[() if node is None else node.taints for node in nodes],
        peak=np.rint(peak),
        is_last_window=is_last,
        taken_cpus={place: taken[name] for place, name in enumerate(names) if name in taken},
    )


def _counted(table: Table) -> tuple[str, ...]:
    return table.pods.counting.resources


def _measured(table: Table, rows: RowArray, prefix: str) -> FloatArray:
    """Two columns of the table, (rows, cpu and memory) in millicores and bytes."""
    return np.stack(
        [table[f"{prefix}_{column}"][rows] * scale for column, scale in _COLUMNS.values()], axis=1
    )


def _prod_usage(state: NodeStateRecord | None) -> tuple[float, float]:
    """Usage of the pods that count as Prod in the last window, millicores and bytes."""
    if state is None:
        return np.nan, np.nan
    usages = [state.class_usage.get(name, _NOTHING) for name in COUNTED_AS_PROD]
    cpu = sum(_known(usage.cpu_cores) for usage in usages)
    return 1000.0 * cpu, sum(_known(usage.memory_bytes) for usage in usages)


def _known(amount: float | None) -> float:
    """The amount; NaN for one that no node can use."""
    return amount if amount is not None and 0 <= amount <= LARGEST_USAGE else np.nan


def _reserved(node: TableNode | None) -> FloatArray | None:
    """What the annotation reserves, (2,) millicores and bytes; None without one."""
    if node is None or RESERVATION not in node.annotations:
        return None
    stated = valid_reservation(node.annotations)
    return np.array([stated.cpu_millicores or 0, stated.memory_bytes or 0], np.float64)


def _outside_usage(state: NodeStateRecord | None) -> FloatArray:
    """Usage of processes outside of Kubernetes in the last window, (2,) millicores and bytes."""
    parts = () if state is None else (state.system_usage, state.host_app_usage)
    amounts = [(1000.0 * _known(part.cpu_cores), _known(part.memory_bytes)) for part in parts]
    return np.array(amounts).sum(axis=0) if amounts else np.full(2, np.nan)


def _take_detected(
    record: NodeRecords, pool: NodePool | None, capacity: FloatArray, usage: FloatArray,
    prod_usage: FloatArray, is_last: BoolArray,
) -> None:  # fmt: skip
    """Write the usage that detection compares into the rows of a node (resources,), if the pool
    compares the same usage: that of Prod, and that of the node where it `is_last` (2,), of the
    last window."""
    policy = None if record.node is None else record.node.hot_nodes
    if pool is None or policy is None or record.state is None:
        return
    if (policy.usage, policy.span_seconds) != (pool.usage, pool.span_seconds):
        return
    percents = record.state.compared_percent
    for column, resource in enumerate(_COLUMNS):
        of_node, of_prod = percents.get(f"node_{resource}"), percents.get(f"prod_{resource}")
        if of_node is not None and is_last[column]:
            usage[column] = of_node / 100.0 * capacity[column]
            is_last[column] = False
        if of_prod is not None:
            prod_usage[column] = of_prod / 100.0 * capacity[column]


def _take_alerts(
    alerts: Iterable[OpenAlert], capacity: FloatArray, usage: FloatArray, prod_usage: FloatArray
) -> None:
    """Write the usage that open alerts of a node compare into its rows (resources,)."""
    for alert in alerts:
        column = MEASURED.index(_resource_of(alert))
        percent = np.nan if alert.usage_percent is None else alert.usage_percent
        of_scope = prod_usage if alert.rule.startswith("prod_") else usage
        of_scope[column] = percent / 100.0 * capacity[column]


def _resource_of(alert: OpenAlert) -> str:
    return alert.rule.partition("_")[2]


def _compared(table: Table, rows: RowArray, pool: NodePool) -> tuple[FloatArray, BoolArray]:
    """The usage that a pool compares, (rows, cpu and memory), and where it is that of the last
    window."""
    of_last = _measured(table, rows, "usage")
    is_last = np.zeros(of_last.shape, np.bool_)
    if pool.usage == "peak":
        return _measured(table, rows, "peak"), is_last
    if pool.usage == "average" and pool.span_seconds == SHORT_SPAN_SECONDS:
        return of_last, ~is_last
    span = _SPANS.get(pool.span_seconds)
    if span is None:  # of a record that no watcher wrote
        return np.full(of_last.shape, np.nan), is_last
    statistic = "avg" if pool.usage == "average" else pool.usage
    usage = _measured(table, rows, f"usage_{statistic}_{span}")
    if pool.usage != "average":
        return usage, is_last
    is_last = np.isnan(usage)
    return np.where(is_last, of_last, usage), is_last


def _amounts(table: Table, rows: RowArray, resources: Sequence[str], kind: str) -> FloatArray:
    """Allocatable amounts (rows, resources); NaN where a node states none of cpu or memory."""
    amounts = np.empty((len(rows), len(resources)))
    for index, name in enumerate(resources):
        if name in _COLUMNS:
            whole = table.whole(f"{kind}_{_COLUMNS[name][0]}")[rows].astype(np.float64)
            amounts[:, index] = np.where(whole > 0, whole, np.nan)
        else:
            amounts[:, index] = table.scalar(name, rows)
    return amounts


def _requested(table: Table, rows: RowArray, resources: Sequence[str]) -> FloatArray:
    counted = _counted(table)
    columns = [
        table.pods.sums_of("pods" if name == "pods" else f"request:{name}", rows)
        if name == "pods" or name in counted
        else np.full(len(rows), np.nan)
        for name in resources
    ]
    return np.stack(columns, axis=1).astype(np.float64)


def cluster_pods(
    records: Sequence[PodRecord],
    nodes: ClusterNodes,
    history: PodHistory,
    pool_of: Sequence[NodePool | None],
    objection: Callable[[PodRecord], str | None],
    counting: Counting,
    caps: MoveCaps = NO_CAPS,
) -> ClusterPods:
    """The columns of pods on these nodes. Their usage is the statistic that the pool of their node
    compares (`pool_of`, by node), over the windows in `history`; the largest for peaks. It is that
    of the last window where usage of the node is (`is_last_window`): what a pod used before would
    be more or less than what leaves the node with it. Where it is unknown, the estimate of
    `counting` is expected."""
    index = {name: position for position, name in enumerate(nodes.names)}
    records = [record for record in records if record.node in index]
    place = np.array([index[record.node] for record in records], np.intp)
    usage = np.full((len(records), len(nodes.resources)), np.nan)
    usage[:, nodes.resources.index("pods")] = 1.0
    known: dict[str, dict[str, FloatArray]] = {}
    for position, record in enumerate(records):
        node = record.node
        if node not in known:
            is_last = nodes.is_last_window
            is_last_here = None if is_last is None else is_last[index[node]]
            known[node] = _usage_of(history, node, pool_of[index[node]], is_last_here)
        of_pod = known[node].get(record.cgroup_uid)
        if of_pod is not None:
            usage[position, :2] = np.rint(of_pod * [scale for _, scale in _COLUMNS.values()])
    requests = [
        [1.0 if name == "pods" else wanted.get(name, 0) for name in nodes.resources]
        for wanted in (by_name(record.requests, record.scalars) for record in records)
    ]
    reasons = {i: reason for i, r in enumerate(records) if (reason := objection(r)) is not None}
    return ClusterPods(
        node=place,
        usage=usage,
        expected=_expected(records, usage, counting, nodes.resources),
        requests=np.array(requests, np.float64).reshape(usage.shape),
        is_prod=np.array([record.pod_class in COUNTED_AS_PROD for record in records], np.bool_),
        may_move=np.array([i not in reasons for i in range(len(records))], np.bool_),
        ranks=pod_ranks(records),
        records=records,
        objections=reasons,
        caps=caps,
    )


def _expected(
    records: Sequence[PodRecord], usage: FloatArray, counting: Counting, names: Sequence[str]
) -> FloatArray:
    """Usage, and where that of cpu or memory is unknown the pod's estimate, at least its request
    where filters estimate nothing of it."""
    expected = usage.copy()
    columns = [names.index(name) for name in _COLUMNS]
    for place in np.flatnonzero(np.isnan(usage[:, columns]).any(axis=1)).tolist():
        pod = records[place]
        requests = by_name(pod.requests, pod.scalars)
        estimates = requests | counting.estimates(pod, requests, pod_limits(pod))
        for column, name in zip(columns, _COLUMNS, strict=True):
            if np.isnan(expected[place, column]):
                expected[place, column] = estimates.get(name, 0)
    return expected


def _usage_of(
    history: PodHistory, node: str, pool: NodePool | None, is_last: BoolArray | None
) -> dict[str, FloatArray]:
    """Usage of the pods of a node, (2,) by cgroup UID; of the last window where `is_last` (2,)."""
    if pool is None:
        over_span = history.usage(node, 300, None)
    else:
        percent = 100 if pool.usage == "peak" else parse_percentile(pool.usage)
        over_span = history.usage(node, pool.span_seconds, percent)
    if is_last is None or not is_last.any():
        return over_span
    of_last = history.usage(node, 0.0, None)
    return {uid: np.where(is_last, of_last[uid], usage) for uid, usage in over_span.items()}
