"""What the demo shows, as plain values, and the protocol of the screen that shows it.

The screen itself is in `pipeline.cli.demo`: this package knows no terminal.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from pipeline.local.demo_queries import Answer, PodUsage
from pipeline.local.demo_suppression import Suppression
from pipeline.local.demo_workload import PODS, DemoPod
from pipeline.table import Table
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.predictions import PredictionRecord

_UNKNOWN = PodUsage(None, None)


class PodReport(NamedTuple):
    """A pod of the demo, its recent usage and its predicted peak; None is unknown."""

    pod: DemoPod
    pod_class: str
    cold: bool
    usage: PodUsage
    peak: PodUsage


class PlacementReport(NamedTuple):
    """The extender's answer for a small pod.

    `real` are the nodes that are not simulated, `catching_up` the number of simulated nodes that
    have not reached the present. `thresholds` are in percent of allocatable.
    """

    answer: Answer
    real: Sequence[str]
    catching_up: int
    url: str
    thresholds: Mapping[str, float]
    pods: Sequence[PodReport]


class Summary(NamedTuple):
    """Totals of a run: `windows` and `gaps` over all nodes."""

    nodes: int
    simulated: int
    with_peaks: int
    windows: int
    gaps: int
    dead_letters: int
    seconds: float


class Screen(Protocol):
    """Shows the progress of the demo."""

    def print(self, text: str, *, indent: int | None = 0) -> None:
        """Print lines that stay. A line that is too long continues on the next one, indented by so
        many columns; None: it is not broken, as a command or a row of a table."""

    def show_nodes(
        self, table: Table, now: float, status: str, suppression: Suppression | None = None
    ) -> None:
        """Show the current nodes, and below them what the node actuator does; called about once a
        second."""

    def show_placement(self, placement: PlacementReport) -> None:
        """Show the extender's answer."""

    def show_summary(self, summary: Summary) -> None:
        """Show the totals at the end."""


def pod_reports(prediction: PredictionRecord, usage: Mapping[str, PodUsage]) -> list[PodReport]:
    """Return the pods of the demo that the prediction contains, in the order of `PODS`.

    Peaks are those of `percentile` with the safety margin, in cores and bytes; `usage` is by UID.
    """
    columns = prediction.pods
    raw = columns.raw.get("percentile")
    if raw is None:
        return []
    factor = (100.0 + prediction.safety_margin_percent) / 100.0
    indexes = {uid: index for index, uid in enumerate(columns.uid)}
    reports = []
    for pod in PODS:
        index = indexes.get(pod.uid)
        if index is None:
            continue
        cpu, memory = raw.cpu_cores[index], raw.memory_bytes[index]
        peak = PodUsage(
            None if cpu is None else cpu * factor, None if memory is None else memory * factor
        )
        reports.append(
            PodReport(
                pod, columns.pod_class[index], columns.cold[index],
                usage.get(pod.uid, _UNKNOWN), peak,
            )
        )  # fmt: skip
    return reports


def summarize(states: Sequence[NodeStateRecord], *, dead_letters: int, seconds: float) -> Summary:
    """Sum up a run of so many seconds from the last state of each node."""
    return Summary(
        nodes=len(states),
        simulated=sum(state.simulated for state in states),
        with_peaks=sum(bool(state.peaks) for state in states),
        windows=sum(state.counters.applied for state in states),
        gaps=sum(state.counters.gaps for state in states),
        dead_letters=dead_letters,
        seconds=seconds,
    )
