"""What the demo shows: its nodes, its pods, the extender's answer, the last word; and where.

Owes the rest: plain values, found from records without asking anybody, and the one protocol by
which the demo speaks to whoever shows them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from pipeline.local.demo_queries import Answer, PodUsage
from pipeline.local.demo_workload import PODS, DemoPod
from pipeline.table import Table
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.predictions import PredictionRecord

_NOTHING_KNOWN = PodUsage(None, None)


class PodLine(NamedTuple):
    """A pod of the demo: what it used lately, and its predicted peak; None is unknown."""

    pod: DemoPod
    pod_class: str
    cold: bool
    usage: PodUsage
    peak: PodUsage


class Asked(NamedTuple):
    """The extender's answer, and by which thresholds it was given (percent of allocatable).
    `real` are the nodes that are not simulated; `late` of the simulated ones have not reached the
    present."""

    answer: Answer
    real: Sequence[str]
    late: int
    url: str
    thresholds: Mapping[str, float]
    pods: Sequence[PodLine]


class Summary(NamedTuple):
    """What happened: windows applied over all nodes, nodes with a peak, records refused."""

    nodes: int
    simulated: int
    with_peaks: int
    windows: int
    gaps: int
    dead_letters: int
    seconds: float


class Screen(Protocol):
    """Where it is shown."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def show(self, table: Table, now: float, status: str) -> None:
        """The nodes as they are now; called about once a second."""

    def asked(self, asked: Asked) -> None:
        """What the extender answered."""

    def ended(self, summary: Summary) -> None:
        """The last word."""


def pods_shown(prediction: PredictionRecord, usage: Mapping[str, PodUsage]) -> list[PodLine]:
    """The pods of the demo that a prediction knows, in the order of `PODS`.

    Peaks are those of `percentile` with the safety margin, in cores and bytes; `usage` is by UID.
    """
    columns = prediction.pods
    raw = columns.raw.get("percentile")
    if raw is None:
        return []
    factor = (100.0 + prediction.safety_margin_percent) / 100.0
    places = {uid: place for place, uid in enumerate(columns.uid)}
    lines = []
    for pod in PODS:
        place = places.get(pod.uid)
        if place is None:
            continue
        cpu, memory = raw.cpu_cores[place], raw.memory_bytes[place]
        peak = PodUsage(
            None if cpu is None else cpu * factor,
            None if memory is None else memory * factor,
        )
        lines.append(
            PodLine(pod, columns.pod_class[place], columns.cold[place],
                    usage.get(pod.uid, _NOTHING_KNOWN), peak)
        )  # fmt: skip
    return lines


def summary_of(states: Sequence[NodeStateRecord], *, dead_letters: int, seconds: float) -> Summary:
    """What happened in so many seconds, by the last state of each node."""
    return Summary(
        nodes=len(states),
        simulated=sum(state.simulated for state in states),
        with_peaks=sum(bool(state.peaks) for state in states),
        windows=sum(state.counters.applied for state in states),
        gaps=sum(state.counters.gaps for state in states),
        dead_letters=dead_letters,
        seconds=seconds,
    )
