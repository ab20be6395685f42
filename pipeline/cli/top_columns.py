"""Declare the columns and the flags of `springtide top`.

To add a column, add an entry to `COLUMNS`: the table, plain text, `--sort`, `--help` and the demo
follow from it (docs/how-to/add-a-top-column.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np

from pipeline.cli.safe_output import printable
from pipeline.processors.accuracy.accuracy_totals import NodeAccuracy
from pipeline.processors.explain.quantity_text import (
    UNKNOWN,
    format_age,
    format_bytes,
    format_count,
    format_cpu,
    format_percent,
)
from pipeline.processors.model.usage_anomalies import ANOMALIES
from pipeline.table.node_documents import LimitsRatio
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.node_state import NodeStateRecord

_ValueT = TypeVar("_ValueT")


class NodeRow(NamedTuple):
    """Everything that a column may show about a node.

    `values` holds the node's row of each column of the state table, and usage and peak in percent
    of allocatable (`usage_cpu_percent`, `peak_memory_percent`, ...); NaN is unknown. `state` is
    None for a node that has not published a window. `accuracy` are the judged peaks of the deciding
    predictor; its age is NaN while it is not stale.
    """

    name: str
    values: Mapping[str, float]
    state: NodeStateRecord | None
    age_seconds: float
    is_fresh: bool
    anomalies: Sequence[str]
    limits: LimitsRatio
    has_invalid_thresholds: bool
    accuracy: NodeAccuracy | None
    accuracy_age_seconds: float


class SortKey(NamedTuple):
    """A value of `--sort`: nodes are sorted by `value`, highest first and unknown last. `key` is
    what selects it in the full-screen view."""

    name: str
    key: str
    value: Callable[[NodeRow], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[_ValueT]):
    """A column of `springtide top`.

    `style` is a style of rich, or a function of the value that returns one. `drop_order` is the
    order in which a narrow terminal drops columns: 1 first, 0 never.
    """

    header: str
    help: str
    value: Callable[[NodeRow], _ValueT]
    format: Callable[[_ValueT], str]
    style: str | Callable[[_ValueT], str] = ""
    drop_order: int = 0
    is_left_aligned: bool = False
    sort: SortKey | None = None

    def cell(self, row: NodeRow) -> tuple[str, str]:
        """The text, without invisible characters, and its style."""
        value = self.value(row)
        text = printable(self.format(value))
        return text, self.style if isinstance(self.style, str) else self.style(value)


def table_value(name: str) -> Callable[[NodeRow], float]:
    """The value function of a column that shows `NodeRow.values[name]`."""
    return lambda row: row.values[name]


# -- flags


class Flag(NamedTuple):
    """A word of the column FLAGS. `text` returns it for a row, with a number if it has one; empty
    where the flag is not raised."""

    name: str
    help: str
    text: Callable[[NodeRow], str]


def _anomaly_text(name: str) -> Callable[[NodeRow], str]:
    details: Mapping[str, Callable[[NodeRow], str]] = {
        "gaps": lambda row: f"gaps={row.values['gaps']:.0f}",
        "partial": lambda row: f"partial={row.values['coverage']:.0%}",
    }

    def text(row: NodeRow) -> str:
        if name not in row.anomalies:
            return ""
        return details[name](row) if name in details else name

    return text


def _unknown_pods(row: NodeRow) -> str:
    count = row.values["unknown_pods"]
    return f"unknown-pods={count:.0f}" if count > 0 else ""


FLAGS: Final = (
    *(Flag(name, meaning, _anomaly_text(name)) for name, meaning in ANOMALIES.items()),
    Flag(
        "simulated",
        "the samples are simulated",
        lambda row: "simulated" if row.values["simulated"] else "",
    ),
    Flag(
        "no-node",
        "samples arrive, but springtide.nodes has no record of the node",
        lambda row: "" if row.values["node_known"] else "no-node",
    ),
    Flag("unknown-pods", "pods that springtide.pods has no record of", _unknown_pods),
    Flag(
        "thresholds",
        "the node's usage-thresholds annotation is invalid",
        lambda row: "thresholds" if row.has_invalid_thresholds else "",
    ),
)
NO_DATA: Final = Flag(
    "no-data",
    "the node has not published a window",
    lambda row: "no-data" if np.isnan(row.values["as_of_seconds"]) else "",
)


def _flags_text(row: NodeRow) -> str:
    return NO_DATA.text(row) or ",".join(text for flag in FLAGS if (text := flag.text(row)))


# -- columns


def _usage_style(percent: float) -> str:
    return "red" if percent >= 90 else "yellow" if percent >= 65 else ""


def _peak_value(amount: str, percent: str) -> Callable[[NodeRow], tuple[float, float]]:
    return lambda row: (row.values[amount], row.values[percent])


def _format_peak(format: Callable[[float], str]) -> Callable[[tuple[float, float]], str]:
    def text(peak: tuple[float, float]) -> str:
        amount, percent = peak
        if np.isnan(amount) or np.isnan(percent):
            return format(amount)
        return f"{format(amount)} {format_percent(percent)}"

    return text


def _highest_peak_percent(row: NodeRow) -> float:
    percents = (row.values["peak_cpu_percent"], row.values["peak_memory_percent"])
    return max((percent for percent in percents if not np.isnan(percent)), default=np.nan)


def _ratio_percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else format_percent(ratio * 100)


def _violation(row: NodeRow) -> tuple[NodeAccuracy | None, float]:
    return row.accuracy, row.accuracy_age_seconds


def _violation_text(value: tuple[NodeAccuracy | None, float]) -> str:
    """Such as `1.2/0.0`, of cpu and memory, with the age if that is stale: `1.2/0.0 9h`."""
    accuracy, stale_seconds = value
    if accuracy is None:
        return UNKNOWN
    rates = (accuracy.cpu, accuracy.memory)
    text = "/".join(UNKNOWN if np.isnan(rate) else f"{100 * rate:.1f}" for rate in rates)
    return text if np.isnan(stale_seconds) else f"{text} {format_age(stale_seconds)}"


def _higher_violation(row: NodeRow) -> float:
    return max(
        (rate for rate in row.accuracy[:2] if not np.isnan(rate)) if row.accuracy else (),
        default=np.nan,
    )


def _hot_text(alerts: Sequence[OpenAlert]) -> str:
    """Such as `cpu!,prod_memory`: rules of the node without their prefix."""
    marks = {"warning": "", "critical": "!"}
    names = (alert.rule.removeprefix("node_") + marks[alert.severity] for alert in alerts)
    return ",".join(names) or UNKNOWN


COLUMNS: Final[tuple[Column[Any], ...]] = (
    Column(
        header="NODE", help="Name of the node.",
        value=lambda row: row.name, format=str, style="bold", is_left_aligned=True,
        sort=SortKey("name", "n", lambda _: 0.0),
    ),
    Column(
        header="AGE", help="Time since the end of the last window.",
        value=lambda row: (row.age_seconds, row.is_fresh),
        format=lambda value: format_age(value[0]), style=lambda value: "" if value[1] else "yellow",
    ),
    Column(
        header="CPU", help="CPU used in the last window.",
        value=table_value("usage_cpu_cores"), format=format_cpu, drop_order=5,
    ),
    Column(
        header="CPU%", help="The same in percent of allocatable.",
        value=table_value("usage_cpu_percent"), format=format_percent, style=_usage_style,
        sort=SortKey("cpu", "c", table_value("usage_cpu_percent")),
    ),
    Column(
        header="MEMORY", help="Memory used in the last window.",
        value=table_value("usage_memory_bytes"), format=format_bytes, drop_order=5,
    ),
    Column(
        header="MEM%", help="The same in percent of allocatable.",
        value=table_value("usage_memory_percent"), format=format_percent, style=_usage_style,
        sort=SortKey("memory", "m", table_value("usage_memory_percent")),
    ),
    Column(
        header="PEAK CPU",
        help="Predicted peak of CPU usage, and its percent of allocatable: above 100 for a peak "
        "above the machine. `--sort peak` sorts by the higher percent of CPU and memory.",
        value=_peak_value("peak_cpu_cores", "peak_cpu_percent"), format=_format_peak(format_cpu),
        style="cyan", drop_order=6, sort=SortKey("peak", "p", _highest_peak_percent),
    ),
    Column(
        header="PEAK MEM", help="Predicted peak of memory usage, and its percent of allocatable.",
        value=_peak_value("peak_memory_bytes", "peak_memory_percent"),
        format=_format_peak(format_bytes), style="cyan", drop_order=6,
    ),
    Column(
        header="PREDICTOR", help="Predictor whose peaks are shown: the node's strategy selects it.",
        value=lambda row: row.state.predictor if row.state else "", format=str, drop_order=2,
        is_left_aligned=True,
    ),
    Column(
        header="PODS", help="Pods measured in the last window.",
        value=table_value("pods"), format=format_count, drop_order=4,
    ),
    Column(
        header="FREE CPU", help="CPU that Prod pods requested and are not expected to use.",
        value=table_value("prod_reclaimable_cpu_cores"), format=format_cpu, style="green",
        drop_order=3,
    ),
    Column(
        header="FREE MEM", help="Memory that Prod pods requested and are not expected to use.",
        value=table_value("prod_reclaimable_memory_bytes"), format=format_bytes, style="green",
        drop_order=3,
    ),
    Column(
        header="VIOL%",
        help="Percent of the judged peaks of this predictor that usage exceeded, of cpu/memory, "
        "with the age of the newest if that is stale; needs --accuracy.",
        value=_violation, format=_violation_text, drop_order=1,
        style=lambda value: "" if np.isnan(value[1]) else "yellow",
        sort=SortKey("violation", "v", _higher_violation),
    ),
    Column(
        header="LIM CPU%",
        help="CPU limits of all pods in percent of allocatable; needs --limits or --extender.",
        value=lambda row: row.limits.cpu, format=_ratio_percent, drop_order=1,
    ),
    Column(
        header="LIM MEM%",
        help="Memory limits of all pods in percent of allocatable; needs --limits or --extender.",
        value=lambda row: row.limits.memory, format=_ratio_percent, drop_order=1,
    ),
    Column(
        header="HOT",
        help="Open alerts: what is hot, with ! if it is critical; `springtide alerts` has more.",
        value=lambda row: row.state.alerts if row.state else (), format=_hot_text,
        style=lambda alerts: "red" if any(a.severity == "critical" for a in alerts) else "yellow",
        is_left_aligned=True,
    ),
    Column(
        header="FLAGS", help="Conditions of the node, listed below.",
        value=_flags_text, format=str, style="yellow", is_left_aligned=True,
    ),
)  # fmt: skip
SORT_KEYS: Final = {column.sort.name: column.sort for column in COLUMNS if column.sort is not None}
DEFAULT_SORT: Final = "cpu"
