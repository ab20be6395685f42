"""When peaks are published: on both sides of each threshold, without flapping, from the log alone.

Early where a value has moved by more than the threshold, else after the force interval.
"""

import dataclasses
import itertools
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.processors.model import publish_policy
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.column_store import Columns
from pipeline.processors.model.entity_models import NEVER
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.model.predictor import strategy_columns
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.topics.nodes import Strategy
from tests.processors.windows import GIB, Pod, streams, window

WINDOW_MS = 30_000
UNKNOWN = float("nan")
USUAL = np.array([[2000.0, 4e9], [1000.0, 2e9], [1000.0, 2e9], [500.0, 1e9]])
PEAKS = ("node_peak", "prod_class_peak", "prod_peak")


def strategies(nodes: int, threshold: float = 5.0) -> dict[str, npt.NDArray[Any]]:
    strategy = Strategy(resource_diff_threshold_percent=threshold)
    return strategy_columns([strategy] * nodes)


class Node:
    """One node's windows on a grid of 30 s."""

    def __init__(self) -> None:
        self._columns = Columns(publish_policy.COLUMNS)
        self._columns.grow(3)
        self._window = 0

    def due(
        self,
        values: npt.NDArray[np.float64] = USUAL,
        *,
        threshold: float = 5.0,
        windows: int = 1,
    ) -> list[bool]:
        """Whether each of the next windows, all with these values, is due."""
        found = []
        for _ in range(windows):
            self._window += 1
            (now,) = publish_policy.due(
                self._columns,
                np.array([1]),
                values[None],
                np.array([7]),
                np.array([self._window * WINDOW_MS]),
                strategies(1, threshold),
            )
            found.append(bool(now))
        return found


def begun() -> Node:
    """A node whose usual values have been due."""
    node = Node()
    assert node.due() == [True]
    return node


def usual(name: str, resource: int, factor: float) -> npt.NDArray[np.float64]:
    """The usual values, but for one of them."""
    values = USUAL.copy()
    at = publish_policy.VALUES.index(name), resource
    values[at] = np.round(values[at] * factor, 3)
    return values


def worse(name: str, percent: float) -> float:
    """The factor that makes this value worse by so much."""
    return 1 + percent / 100 * (1 if name in PEAKS else -1)


ALL = [(name, resource) for name in publish_policy.VALUES for resource in (0, 1)]


@pytest.mark.parametrize(("name", "resource"), ALL)
@pytest.mark.parametrize(
    ("percent", "due"),
    [
        (5.0, [False, False, False, False]),
        (5.2, [True, False, False, False]),
        (50.0, [True, False, False, False]),
        (-5.0, [False, False, False, False]),
        # Noticed at the first window, it has lasted for a minute at the third.
        (-5.2, [False, False, True, False]),
        (-50.0, [False, False, True, False]),
        (0.0, [False, False, False, False]),
    ],
)
def test_worse_values_are_due_at_once_and_better_ones_after_the_interval(
    name: str, resource: int, percent: float, due: list[bool]
) -> None:
    values = usual(name, resource, worse(name, percent))
    assert begun().due(values, windows=4) == due


@pytest.mark.parametrize(("name", "resource"), ALL)
def test_value_that_becomes_known_or_unknown_is_due_at_once(name: str, resource: int) -> None:
    node, unknown = begun(), usual(name, resource, UNKNOWN)
    assert node.due(unknown, windows=3) == [True, False, False]
    assert node.due(USUAL, windows=3) == [True, False, False]


def test_peaks_are_due_again_exactly_after_the_force_interval() -> None:
    node = begun()
    # 600 s are 20 windows.
    assert node.due(windows=19) == [False] * 19
    assert node.due(windows=21) == [True] + [False] * 19 + [True]


def test_early_publication_restarts_the_force_interval() -> None:
    node = begun()
    node.due(windows=10)
    assert node.due(usual("node_peak", 0, 2.0), windows=21) == [True] + [False] * 19 + [True]


@pytest.mark.parametrize(
    ("threshold", "percent", "due"),
    [(0.0, 0.001, True), (0.0, 0.0, False), (50.0, 50.0, False), (50.0, 50.1, True)],
)
def test_each_node_has_the_threshold_of_its_strategy(
    threshold: float, percent: float, due: bool
) -> None:
    values = usual("node_peak", 0, 1 + percent / 100)
    assert begun().due(values, threshold=threshold) == [due]


def test_reclaimable_zero_is_due_at_once_and_more_after_the_interval() -> None:
    node = begun()
    assert node.due(usual("prod_reclaimable", 0, 0.0), windows=2) == [True, False]
    assert node.due(USUAL, windows=3) == [False, False, True]


def test_slow_drift_is_due_once_it_exceeds_the_threshold() -> None:
    node = begun()
    due = [node.due(usual("node_peak", 0, 1.01**step))[0] for step in range(1, 13)]
    # 1.01^5 is the first power above 1.05; then from there again.
    assert [step for step, now in enumerate(due, start=1) if now] == [5, 10]


def test_swinging_value_is_published_at_its_worst() -> None:
    node, high = begun(), usual("node_peak", 0, 1.2)
    assert node.due(high) == [True]
    swing = [node.due(values)[0] for _ in range(6) for values in (USUAL, USUAL, high)]
    assert not any(swing)


def test_easing_that_ends_early_restarts_its_interval() -> None:
    node, low = begun(), usual("node_peak", 0, 0.5)
    assert node.due(low, windows=2) == [False, False]
    assert node.due(USUAL) == [False]
    assert node.due(low, windows=3) == [False, False, True]


@pytest.mark.parametrize("windows_a_turn", range(1, 61))
def test_swinging_value_is_due_little_more_often_than_by_force(windows_a_turn: int) -> None:
    node, high = begun(), usual("node_peak", 0, 1.2)
    turns = [high if (at // windows_a_turn) % 2 else USUAL for at in range(2880)]
    due = sum(node.due(values)[0] for values in turns)
    # A day has 144 force intervals; a turn that lasts as long as one may cause a record of its own.
    assert due <= 2 * 144 + 10


def test_value_that_worsens_after_easing_must_stay_twice_as_long() -> None:
    node, high = begun(), usual("node_peak", 0, 1.2)
    steps = [(high, 1), (USUAL, 3), (high, 1), (USUAL, 5), (USUAL, 20), (high, 1), (USUAL, 3)]
    assert [node.due(values, windows=windows) for values, windows in steps] == [
        [True],
        [False, False, True],
        [True],
        [False, False, False, False, True],
        # 600 s after it eased it may have settled: the usual time is enough again.
        [*[False] * 19, True],
        [True],
        [False, False, True],
    ]


def test_several_steps_for_the_worse_count_as_one_turn() -> None:
    node = begun()
    node.due(usual("node_peak", 0, 1.2))
    assert node.due(USUAL, windows=3)[-1]
    for factor in (1.1, 1.2, 1.3, 1.4):
        assert node.due(usual("node_peak", 0, factor)) == [True]
    assert node.due(USUAL, windows=5) == [False, False, False, False, True]


VALUE = st.sampled_from([0.0, 1.0, 100.0, 104.9, 105.0, 105.1, 95.0, 94.9, 1e18, UNKNOWN])
WINDOWS = st.lists(
    st.tuples(st.integers(1, 700), st.lists(VALUE, min_size=8, max_size=8), st.integers(0, 1)),
    max_size=30,
)


def slowly(windows: list[tuple[int, list[float], int]]) -> list[bool]:
    """The same decisions, value by value and as the sentences say them."""
    now, published, published_s, published_terms = 0, [UNKNOWN] * 8, NEVER, 0
    since: list[int | None] = [None] * 8
    let_go, hold = [NEVER] * 8, [60] * 8
    found = []
    for seconds, values, terms in windows:
        now += seconds
        due = published_s == NEVER or terms != published_terms or now - published_s >= 600
        got_worse, got_better = [False] * 8, [False] * 8
        for i, (old, new) in enumerate(zip(published, values, strict=True)):
            if (old != old) != (new != new):
                due = True
            moved = abs(new - old) * 100 > 5 * old
            rose = new > old
            got_worse[i] = moved and rose == (i < 6)
            got_better[i] = moved and rose != (i < 6)
            since[i] = None if not got_better[i] else since[i] if since[i] is not None else now
            began = since[i]
            if got_worse[i] or (began is not None and now - began >= hold[i]):
                due = True
        if due:
            for i in range(8):
                if got_worse[i] and let_go[i] != NEVER:
                    hold[i] = min(2 * hold[i], 600) if now - let_go[i] < 600 else 60
                    let_go[i] = NEVER
                if got_better[i]:
                    let_go[i] = now
            published, published_s, published_terms, since = values, now, terms, [None] * 8
        found.append(due)
    return found


@settings(deadline=None)
@given(st.lists(WINDOWS, min_size=1, max_size=4))
@example([[(1, [0.0] * 8, 0), (1, [0.001] * 8, 0)]])  # any rise from 0 exceeds the threshold
@example([[(30, [UNKNOWN] * 8, 0)] * 21])  # unknown values are due once and then by force
def test_nodes_in_a_batch_are_decided_as_by_a_plain_loop(
    nodes: list[list[tuple[int, list[float], int]]],
) -> None:
    columns = Columns(publish_policy.COLUMNS)
    columns.grow(2 * len(nodes))
    found: list[list[bool]] = [[] for _ in nodes]
    ends = [0] * len(nodes)
    for turn in range(max(map(len, nodes))):
        here = [n for n, windows in enumerate(nodes) if turn < len(windows)]
        for n in here:
            ends[n] += nodes[n][turn][0] * 1000
        due = publish_policy.due(
            columns,
            np.array([2 * n for n in here]),
            np.array([nodes[n][turn][1] for n in here]).reshape(-1, 4, 2),
            np.array([nodes[n][turn][2] for n in here]),
            np.array([ends[n] for n in here]),
            strategies(len(here)),
        )
        for n, now in zip(here, due.tolist(), strict=True):
            found[n].append(now)
    assert found == [slowly(windows) for windows in nodes]


# -- with a bank


CONFIG = ModelConfig(strategy=Strategy(cold_start_seconds=0.0, cold_start_samples=0))


def due_by(bank: Bank, windows: list[NodeWindow]) -> list[tuple[str, int]]:
    """Node and end of what is due, window by window."""
    found = []
    for one in windows:
        (outcome,) = bank.apply([one])
        if outcome.status == "applied":
            peaks = bank.peaks([one.node])
            if bank.due(peaks)[0]:
                found.append((one.node, one.end_ms))
    return found


def warm(**changes: Any) -> Strategy:
    """The strategy of CONFIG, with changes."""
    return msgspec.structs.replace(CONFIG.strategy, **changes)


def test_a_bank_watches_the_deciding_predictor_and_its_strategy() -> None:
    bank = Bank(CONFIG)
    pods = [Pod("a", (1.0, GIB), requests=(4000.0, 4 * GIB))]

    def due(end: int, strategy: Strategy, **changes: float) -> bool:
        given = dataclasses.replace(window(end, pods), strategy=strategy)
        return bool(due_by(bank, [given]))

    usual = CONFIG.strategy
    assert [due(end, usual) for end in (0, 1)] == [True, False]
    changes: tuple[dict[str, Any], ...] = (
        {"safety_margin_percent": 11.0},
        {"predictor": "nsigma-v1"},
        {"cold_start_seconds": 1.0},
        {"resource_diff_threshold_percent": 6.0},
        {"report_interval_seconds": 61.0},
        {"force_update_seconds": 601.0},
    )
    for end, change in zip(itertools.count(2, 3), changes, strict=False):
        changed = warm(**change)
        found = due(end, changed), due(end + 1, changed), due(end + 2, usual)
        assert found == (True, False, True)


def test_each_node_is_decided_by_its_own_predictor() -> None:
    bank = Bank(CONFIG)
    pods = [Pod("a", (1.0, GIB), requests=(4000.0, 4 * GIB))]
    deciding = {"node-a": "nsigma-v1", "node-b": "percentile", "node-c": "nsigma-v1"}
    bank.apply(
        [
            dataclasses.replace(
                window(0, pods, node=node, usage=(1.5, 2 * GIB)), strategy=warm(predictor=name)
            )
            for node, name in deciding.items()
        ]
    )
    peaks = bank.peaks(deciding)
    for i, node in enumerate(peaks):
        summary = peaks.summaries[i]
        assert summary.decides == node.decides == deciding[node.node]
        assert summary.amount == node.reclaimable.amount.tolist()
        assert summary.peak == node.reclaimable.peak.tolist()
        assert summary.peaks == {
            name: answer.peaks[0].tolist() for name, answer in node.predictors.items()
        }
        (alone,) = publish_policy.watched_values(bank.peaks([node.node]))
        assert publish_policy.watched_values(peaks)[i].tolist() == alone.tolist()
        assert alone[3].tolist() == node.reclaimable.amount.tolist()
    first, second = peaks.summaries[0], peaks.summaries[1]
    assert first.amount != second.amount


def test_departed_pod_lowers_reclaimable_at_once() -> None:
    bank = Bank(CONFIG)
    both = [Pod(uid, (1.0, GIB), requests=(4000.0, 4 * GIB)) for uid in "ab"]
    assert len(due_by(bank, [window(0, both), window(1, both)])) == 1
    assert due_by(bank, [window(2, both[:1])]) == [("node-a", window(2).end_ms)]


def test_peaks_of_another_machine_are_due_at_once() -> None:
    bank = Bank(CONFIG)
    assert len(due_by(bank, [window(0), window(1), window(3, machine="other")])) == 2


def test_peaks_of_a_returning_node_are_due_at_once() -> None:
    bank = Bank(CONFIG)
    assert len(due_by(bank, [window(0), window(1)])) == 1
    bank.forget("node-a")
    assert len(due_by(bank, [window(2)])) == 1


@settings(deadline=None, max_examples=25)
@given(streams(), st.integers(0, 13))
def test_restored_bank_publishes_at_the_same_windows(windows: list[NodeWindow], cut: int) -> None:
    whole, first, second = Bank(CONFIG), Bank(CONFIG), Bank(CONFIG)
    expected = due_by(whole, windows)
    found = due_by(first, windows[:cut])
    for node in first.nodes:
        second.restore(node, first.encode_state(node))
    assert found + due_by(second, windows[cut:]) == expected
    assert {n: whole.encode_state(n) for n in whole.nodes} == {
        n: second.encode_state(n) for n in second.nodes
    }


@settings(deadline=None, max_examples=25)
@given(streams())
def test_batches_change_nothing(windows: list[NodeWindow]) -> None:
    """All nodes that have a next window in one batch, against one window at a time."""
    one_by_one, together = Bank(CONFIG), Bank(CONFIG)
    expected = sorted(due_by(one_by_one, windows))
    found = []
    queues = {n: [w for w in windows if w.node == n] for n in {w.node for w in windows}}
    for turn in itertools.zip_longest(*queues.values()):
        batch = [w for w in turn if w is not None]
        outcomes = together.apply(batch)
        if applied := [o.node for o in outcomes if o.status == "applied"]:
            peaks = together.peaks(applied)
            due = together.due(peaks)
            found += [(p.node, p.end_ms) for p, now in zip(peaks, due, strict=True) if now]
    assert sorted(found) == expected


def test_terms_hash_depends_on_strategy_predictor_and_settings() -> None:
    base, same, *others = (
        publish_policy.terms_hash(strategy, predictor, settings)
        for strategy, predictor, settings in (
            (Strategy(), "percentile", ""),
            (Strategy(), "percentile", ""),
            (Strategy(), "other", ""),
            (Strategy(nsigma_multiplier=2.0), "percentile", ""),
            (Strategy(), "percentile", "more"),
        )
    )
    assert same == base not in others
    assert -(2**63) <= base < 2**63


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, 0),
        ({"predictors": (*CONFIG.predictors, "vpa")}, 1),
        ({"predictors": ("percentile",)}, 1),
        ({"predictors": CONFIG.predictors[::-1]}, 0),
        ({"options": {"percentile": {"cpu": 0.9}}}, 1),
        ({"class_horizon_seconds": {"batch": 3600.0}}, 1),
        ({"strategy": msgspec.structs.replace(CONFIG.strategy, report_interval_seconds=61.0)}, 1),
        ({"minimum_coverage": 0.5}, 0),
    ],
)
def test_peaks_are_due_after_a_restart_with_other_predictors(
    changes: dict[str, Any], due: int
) -> None:
    """And not the force interval later: the old record has neither new names nor new numbers."""
    before, after = Bank(CONFIG), Bank(dataclasses.replace(CONFIG, **changes))
    assert len(due_by(before, [window(0), window(1)])) == 1
    after.restore("node-a", before.encode_state("node-a"))
    assert len(due_by(after, [window(2), window(3)])) == due
