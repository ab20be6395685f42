"""Draw the figures of docs/explanation/concepts.md.

    python -m tests.docs.concept_figures

The amounts of the example are computed by the formulas of the product, with its default policy.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pipeline.processors.figures.svg import figure, path, polyline, rectangle, text, width_of
from pipeline.processors.overcommit.batch import batch
from pipeline.processors.overcommit.mid import allocated, mid
from pipeline.processors.policy.colocation_config import Colocation
from tests.processors.overcommit.fleets import Node, Pod, columns

FOLDER: Final = Path(__file__).parents[2] / "docs" / "explanation"
WIDTH: Final = 700
CAPACITY, SYSTEM, USED, PEAK, REQUESTED = 16_000, 500, 3_000, 6_500, 10_000
"""Millicores of the example: the node, its system, and Prod's usage, peak and requests."""


class Amounts(NamedTuple):
    """Millicores of Mid, Batch and the margin above the reclaim threshold, before the buffer."""

    mid: int
    batch: int
    margin: int


def example() -> Amounts:
    """What the node of the example has for Mid and Batch."""
    nothing, size = (0, 0), (CAPACITY, 0)
    node = Node(
        capacity=size, kubelet=nothing, annotated=nothing, system=(SYSTEM, 0), prod_apps=nothing,
        mid_apps=nothing, allocatable=size, reclaimable=nothing, usage=(SYSTEM + USED, 0),
        peak=(PEAK, 0), own=Colocation(),
    )  # fmt: skip
    pods = [Pod("prod", is_lse=False, is_listed=True, request=(REQUESTED, 0), usage=(USED, 0))]
    nodes, of_pods, policies = columns([(node, pods)])
    of_mid = mid(nodes, allocated(1, of_pods), policies).amount
    of_batch = batch(nodes, of_pods, policies, of_mid)
    return Amounts(
        int(of_mid[0, 0]), int(of_batch.amount[0, 0]), int(of_batch.terms["margin"][0, 0])
    )


def peak_to_batch() -> str:
    """Bars of the example node: what is requested, expected, used, and offered."""
    amounts, left, pixels = example(), 150, 530 / CAPACITY
    rows: list[tuple[str, list[tuple[str, int, str]]]] = [
        ("the node has", [("allocatable", CAPACITY, "usage")]),
        ("Prod requests", [("requests", REQUESTED, "other")]),
        ("Prod will need", [
            ("predicted peak", PEAK, "own"), ("not needed", REQUESTED - PEAK, "hollow"),
        ]),
        ("used now", [("system", SYSTEM, "other"), ("Prod", USED, "own")]),
        ("the node offers", [
            ("system", SYSTEM, "other"), ("Prod", USED, "own"), ("Mid", amounts.mid, "hollow"),
            ("Batch", amounts.batch, "hollow"), ("never offered", amounts.margin, "usage"),
        ]),
    ]  # fmt: skip
    parts = [
        text(8, 18, "How a predicted peak becomes Mid and Batch", "strong"),
        text(8, 34, "cores of one node, with the default policy", "faint"),
    ]
    for number, (name, bars) in enumerate(rows):
        y, x = 50 + 34 * number, float(left)
        parts.append(text(left - 8, y + 15, name, anchor="end"))
        for label, millicores, kind in bars:
            wide = millicores * pixels
            parts.append(rectangle(x, y, wide, 22, kind, f"{label}: {cores(millicores)}"))
            content = f"{label} {cores(millicores)}"
            if width_of(content) < wide:
                parts.append(text(x + wide / 2, y + 15, content, "", "middle"))
            x += wide
    description = "; ".join(
        f"{name}: " + ", ".join(f"{label} {cores(amount)}" for label, amount, _ in bars)
        for name, bars in rows
    )
    return figure(WIDTH, 224, "How a predicted peak becomes Mid and Batch", description, parts)


def cores(millicores: int) -> str:
    """Cores as text: 1600 is 1.6."""
    return f"{millicores / 1000:g}"


class Box(NamedTuple):
    """A box with its name, and a line of text below it."""

    x: float
    y: float
    width: float
    name: str
    about: str


BOXES: Final = (
    Box(8, 44, 190, "exporter, on every node", "reads cgroups every second"),
    Box(8, 110, 190, "watcher", "Nodes, Pods, the policy"),
    Box(255, 44, 190, "Kafka", "samples, nodes, pods"),
    Box(255, 150, 190, "workers", "join, learn, predict, decide"),
    Box(255, 256, 190, "Kafka", "windows, state, peaks, alerts"),
    Box(502, 44, 190, "extender", "answers kube-scheduler"),
    Box(502, 110, 190, "cluster actuator", "Mid and Batch on Nodes"),
    Box(502, 176, 190, "planner, then evictor", "relieve hot nodes"),
    Box(502, 242, 190, "node actuator, on every node", "limits in cgroups"),
    Box(502, 308, 190, "notifier, top, console", "alerts, tables, pages"),
)
_HEIGHT: Final = 46
Points = Sequence[tuple[float, float]]
ARROWS: Final[Sequence[Points]] = (
    [(198, 67), (253, 67)],
    [(198, 133), (226, 133), (226, 78), (253, 78)],
    [(350, 90), (350, 148)],
    [(350, 196), (350, 254)],
    *([(445, 279), (474, 279), (474, y), (500, y)] for y in (67, 133, 199, 265, 331)),
)


def data_flow() -> str:
    """Who writes to Kafka, and who reads from it."""
    parts = [text(8, 20, "From usage to decisions", "strong")]
    for box in BOXES:
        parts.append(rectangle(box.x, box.y, box.width, _HEIGHT, "hollow"))
        middle = box.x + box.width / 2
        parts.append(text(middle, box.y + 19, box.name, "strong", "middle"))
        parts.append(text(middle, box.y + 35, box.about, "faint", "middle"))
    for points in ARROWS:
        parts += arrow(points)
    description = (
        "Exporters and the watcher write samples, nodes and pods to Kafka. Workers read them and "
        "write windows, node states, peaks and alerts to Kafka. Extender, cluster actuator, "
        "planner and evictor, node actuator, notifier, top and console read these."
    )
    return figure(WIDTH, 366, "From usage to decisions", description, parts)


def arrow(points: Points) -> Iterator[str]:
    """A line along these points, with a head that points down or to the right."""
    yield path(polyline(points), "own-line")
    (x, y), is_down = points[-1], points[-1][0] == points[-2][0]
    sides = [(x - 4, y - 7), (x + 4, y - 7)] if is_down else [(x - 7, y - 4), (x - 7, y + 4)]
    yield path(polyline([(x, y), *sides]), "own")


FIGURES: Final = {"data-flow.svg": data_flow, "peak-to-batch.svg": peak_to_batch}


def main() -> None:
    for name, draw in FIGURES.items():
        (FOLDER / name).write_text(draw())


if __name__ == "__main__":
    main()
