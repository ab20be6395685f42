"""Debounce of hot nodes, through `step` of the product."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from pipeline.processors.hot_nodes.debounce import step
from pipeline.processors.hot_nodes.thresholds import thresholds
from pipeline.processors.model.alert_columns import COLUMNS
from pipeline.processors.model.column_store import Columns
from pipeline.topics.hot_node_policy import HotNodePolicy
from tests.vectors.cases import Case
from tests.vectors.runner import Difference, group

_HOT, _CALM, _UNKNOWN = 90.0, 10.0, np.nan
_PERCENT: Final = {"abnormal": _HOT, "normal": _CALM, "look": _UNKNOWN}
_STEP_MS: Final = 1000
_UNWATCHED: Final = HotNodePolicy()


class _Nodes:
    """Nodes that are debounced second by second."""

    def __init__(self, count: int, opens: int, closes: int) -> None:
        policy = HotNodePolicy(high_percent={"cpu": 70.0}, open_windows=opens, close_windows=closes)
        self._policies = [policy] * count
        self._columns = Columns(COLUMNS)
        self._columns.grow(count)
        self._end_ms = 10**12

    def look(self, percents: Sequence[float], *, reset: bool = False) -> list[bool]:
        """Whether each node has an open alert after windows of this usage."""
        self._end_ms += _STEP_MS
        count = len(self._policies)
        policies = [_UNWATCHED] * count if reset else self._policies
        usage = np.full((count, 4), np.nan)
        usage[:, 0] = percents
        end_ms = np.full(count, self._end_ms)
        levels = step(
            self._columns, np.arange(count), usage, thresholds(policies), end_ms - _STEP_MS, end_ms
        )
        return [bool(level) for level in levels.after[:, 0].tolist()]


def _detector(case: Case) -> object:
    node = _Nodes(1, case["open_at"], case["close_at"])
    assert case["timeout_s"] > 0  # nothing lapses
    states = []
    for event in case["events"]:
        assert event["at"] >= 0
        mark = event["mark"]
        percent = _PERCENT.get(mark, _UNKNOWN)
        states.append("anomaly" if node.look([percent], reset=mark == "reset")[0] else "ok")
    return {"states": states}


def _node_filter(case: Case) -> object:
    rounds = case["rounds"]
    names = sorted({n for of in rounds for key in ("hot", "mark_normal") for n in of.get(key, [])})
    nodes = _Nodes(
        len(names), case["consecutive_abnormalities"], case.get("consecutive_normalities", 3)
    )
    confirmed = []
    for of in rounds:
        hot = of.get("hot", [])
        are_open = nodes.look([_HOT if name in hot else _CALM for name in names])
        confirmed.append([name for name, is_open in zip(names, are_open, strict=True) if is_open])
    return {"confirmed": confirmed}


_NO_COUNTERS: Final = "an alert has no counters of marks: its record has the usage itself"
_NO_TIMEOUT: Final = "an alert stays open while the node is hot; upstream's lapses after a timeout"
_EXACT: Final = "a setting of N opens with the N-th hot window; upstream needs one more from 2 on"
_IN_A_ROW: Final = "a window that is not hot ends a run; upstream's runs survive quiet rounds"
_ANSWERS: Final[dict[str, tuple[str, list[list[str]]]]] = {
    "two nodes": (_EXACT, [[], ["test-node-2"], ["test-node-2"]]),
    "normal marks": (_EXACT, [[], ["a"], ["a"], ["a"], [], []]),
    "quiet rounds": (_IN_A_ROW, [[], [], [], [], [], []]),
}


def _differs(given: Any, expected: Any) -> Difference | None:
    if given["kind"] == "detector":
        states, effect = list(expected["states"]), _NO_COUNTERS
        if any(event["mark"] == "look" for event in given["events"]):
            looked = [event["mark"] for event in given["events"]].index("look")
            states[looked:] = ["anomaly"] * (len(states) - looked)
            effect = f"{_NO_TIMEOUT}; {_NO_COUNTERS}"
        return Difference(effect, effect, {"states": states})
    if len(given["rounds"]) == 1:
        return None
    if any("mark_normal" in of for of in given["rounds"]):
        key = "normal marks"
    else:
        key = "quiet rounds" if given["consecutive_abnormalities"] == 3 else "two nodes"
    why, confirmed = _ANSWERS[key]
    return Difference(why, why, {"confirmed": confirmed})


@group("debounce.step", differs=_differs)
def anomaly_detector(case: Case) -> object:
    """Marks as windows: abnormal is hot, normal is calm, a look is a window of unknown usage, and a
    reset removes the threshold for a window."""
    return {"detector": _detector, "node_filter": _node_filter}[case["kind"]](case)
