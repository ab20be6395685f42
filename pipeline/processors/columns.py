"""From the rows of a window to arrays: what models learn from and what is reported as usage.

The one place that knows both the columns of `springtide.windows` and the arrays of the model bank.
Usage arrays have two columns, cpu in cores and memory in bytes; NaN is unknown.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.processors.classes import CLASS_CODES
from pipeline.processors.reclaimable import TO_KUBERNETES, sum_by
from pipeline.processors.system_usage import remainder
from pipeline.processors.window import PLAUSIBLE, NodeWindow
from pipeline.topics.resources import Resources
from pipeline.topics.samples import SYSTEM_TIER
from pipeline.topics.windows import Window

Floats = npt.NDArray[np.float64]

MEMORY_COLUMNS: Final = {
    "usageWithoutPageCache": "memory_bytes",
    "usageWithPageCache": "memory_with_page_cache_bytes",
    "usageWithHotPageCache": "memory_with_hot_page_cache_bytes",
}
"""Column of each memory collect policy. Where a kernel does not give the one asked for, memory
without page cache stands in, as the field does."""

_BELIEVED: Final = tuple((PLAUSIBLE * TO_KUBERNETES).tolist())
_ENDED: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """Averages over the whole window: node (2,), pods (n, 2), host applications summed (2,) and
    the system remainder (2,). A pod that lived for half of it counts half of what it used then."""

    node: Floats
    system: Floats
    pods: Floats
    pod_classes: npt.NDArray[np.int8]
    host_apps: Floats
    coverage: float


def usage_of(rows: pa.RecordBatch, statistic: str, memory_policy: str) -> Floats:
    """One statistic of every row, (rows, 2)."""
    cpu = _floats(rows, f"cpu_cores_{statistic}")
    plain = _floats(rows, f"memory_bytes_{statistic}")
    asked = _floats(rows, f"{MEMORY_COLUMNS[memory_policy]}_{statistic}")
    return np.column_stack([cpu, np.where(np.isnan(asked), plain, asked)])


def window_usage(window: Window, memory_policy: str) -> WindowUsage:
    """What was used on average in this window."""
    kinds = _kinds(window)
    usage = usage_of(window.rows, "avg", memory_policy)
    node, coverage = usage[kinds == "node"][0], _coverage(window, kinds)
    whole = usage * _shares(window, coverage)
    pods, host_apps = whole[kinds == "pod"], summed(whole[kinds == "host_app"])
    system = _system_row(window, kinds)
    return WindowUsage(
        node=node,
        # Where a pod's usage is unknown so is the rest: its part would pass for the system's.
        system=remainder(node, summed(pods), host_apps) if system is None else usage[system],
        pods=pods,
        pod_classes=_classes(window.rows)[kinds == "pod"],
        host_apps=host_apps,
        coverage=coverage,
    )


def node_window(window: Window, statistic: str, memory_policy: str) -> NodeWindow:
    """The window as the model bank takes it, with `statistic` as the sample of each entity."""
    rows, kinds = window.rows, _kinds(window)
    usage = usage_of(rows, statistic, memory_policy)
    system = _system_row(window, kinds)
    at = np.flatnonzero(kinds == "pod")
    ids = rows.column("id").to_pylist()
    phases = rows.column("phase").to_pylist()
    deleting = rows.column("deleting").to_pylist()
    requests = np.column_stack(
        [_floats(rows, "request_cpu_millicores"), _floats(rows, "request_memory_bytes")]
    )
    return NodeWindow(
        node=window.header.node,
        machine_id=window.header.machine_id,
        epoch=window.header.epoch,
        start_ms=window.header.window_start_ms,
        end_ms=window.header.window_end_ms,
        coverage=_coverage(window, kinds),
        node_usage=usage[kinds == "node"][0],
        host_apps=summed(usage[kinds == "host_app"]),
        # Percentiles do not add: without a row of its own the system is what averages leave.
        system_usage=(
            window_usage(window, memory_policy).system if system is None else usage[system]
        ),
        allocatable=resources_array(window.node.allocatable),
        strategy=window.node.strategy,
        pod_uids=[ids[row] for row in at],
        pod_classes=_classes(rows)[at],
        pods=usage[at],
        pod_coverages=_floats(rows, "coverage")[at],
        requests=requests[at],
        pod_ages=_floats(rows, "age_seconds")[at],
        pod_active=np.array([not deleting[r] and phases[r] not in _ENDED for r in at], np.bool_),
    )


def summed(usage: Floats) -> Floats:
    """The sum (2,) of rows (n, 2), added from the first to the last; NaN where one of them is."""
    total: Floats = sum_by(np.zeros(len(usage), np.int64), usage, 1)[0]
    return total


def resources_array(resources: Resources) -> Floats:
    """(2,) millicores and bytes; NaN where not stated, negative or beyond belief."""
    values = zip((resources.cpu_millicores, resources.memory_bytes), _BELIEVED, strict=True)
    return np.array([np.nan if v is None or not 0 <= v <= most else float(v) for v, most in values])


def _kinds(window: Window) -> npt.NDArray[np.str_]:
    return np.array(window.rows.column("kind").to_pylist(), dtype=np.str_)


def _shares(window: Window, node_coverage: float) -> Floats:
    """Of every row, (rows, 1): the share of the node's time in which it was seen, 0..1."""
    coverage = np.nan_to_num(_floats(window.rows, "coverage"), nan=node_coverage)
    if node_coverage <= 0.0:
        return np.ones((len(coverage), 1))
    return (np.minimum(coverage, node_coverage) / node_coverage)[:, None]


def _system_row(window: Window, kinds: npt.NDArray[np.str_]) -> int | None:
    """Which row is the system remainder as the exporter measured it, if there is one that speaks
    for at least half of the node's time."""
    ids = window.rows.column("id").to_pylist()
    shares = _shares(window, _coverage(window, kinds))[:, 0]
    found = [
        int(row)
        for row in np.flatnonzero(kinds == "tier")
        if ids[row] == SYSTEM_TIER and shares[row] >= 0.5
    ]
    return found[0] if found else None


def _coverage(window: Window, kinds: npt.NDArray[np.str_]) -> float:
    coverage = _floats(window.rows, "coverage")[kinds == "node"][0]
    return 0.0 if np.isnan(coverage) else float(coverage)


def _classes(rows: pa.RecordBatch) -> npt.NDArray[np.int8]:
    column = rows.column("pod_class")
    unknown = CLASS_CODES["unknown"]
    names = [CLASS_CODES.get(name, unknown) for name in column.dictionary.to_pylist()]
    codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    # One more entry than there are names, so that null (-1) finds the unknown class at the end.
    found: npt.NDArray[np.int8] = np.array([*names, unknown], dtype=np.int8)[codes]
    return found


def _floats(rows: pa.RecordBatch, name: str) -> Floats:
    column = rows.column(name)
    if column.null_count == len(column):
        return np.full(len(column), np.nan)
    values: Floats = column.to_numpy(zero_copy_only=False)
    return values
