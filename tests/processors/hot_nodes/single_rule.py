"""The debounce of the product over usage in percent, for tests."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.processors.hot_nodes.debounce import NONE, WARNING, step
from pipeline.processors.hot_nodes.thresholds import thresholds
from pipeline.processors.model.alert_columns import COLUMNS
from pipeline.processors.model.column_store import Columns
from pipeline.topics.hot_node_policy import HotNodePolicy

WINDOW_MS = 30_000
START_MS = 1_700_000_000_000


def policy_of(
    high: float = 70.0, *, opens: int = 5, closes: int = 3, hysteresis: float = 5.0
) -> HotNodePolicy:
    return HotNodePolicy(
        high_percent={"cpu": high}, open_windows=opens, close_windows=closes,
        hysteresis_percent=hysteresis,
    )  # fmt: skip


@dataclass
class Debounced:
    """Some nodes with a policy each, whose CPU is watched."""

    policies: Sequence[HotNodePolicy]
    columns: Columns = field(init=False)

    def __post_init__(self) -> None:
        self.columns = Columns(COLUMNS)
        self.columns.grow(len(self.policies))

    def look(self, number: int, *percents: float | None) -> list[str]:
        """What changes with the window of this number, of every node."""
        count = len(self.policies)
        usage = np.full((count, 4), np.nan)
        usage[:, 0] = [np.nan if percent is None else percent for percent in percents]
        end_ms = np.full(count, START_MS + number * WINDOW_MS)
        levels = step(
            self.columns, np.arange(count), usage, thresholds(self.policies), end_ms - WINDOW_MS,
            end_ms,
        )  # fmt: skip
        return [
            _change(int(a), int(b))
            for a, b in zip(levels.before[:, 0], levels.after[:, 0], strict=True)
        ]


def _change(before: int, after: int) -> str:
    if before == after:
        return ""
    if before == NONE:
        return "opened"
    if after == NONE:
        return "closed"
    return "eased" if after == WARNING else "escalated"


def changes(
    percents: Sequence[float | None], policy: HotNodePolicy | None = None
) -> list[tuple[int, str]]:
    """The changes of a node with this usage, window after window, with the window's number."""
    node = Debounced([policy or policy_of()])
    found = [(number, node.look(number, percent)[0]) for number, percent in enumerate(percents, 1)]
    return [(number, change) for number, change in found if change]
