"""An outage of the usage pipeline, told from nodes that fell silent on their own."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.loadaware.usage_outage import (
    CATCH_UP_SECONDS,
    TOGETHER_SECONDS,
    UsageOutage,
    usage_outage,
)
from pipeline.processors.loadaware.usage_readings import is_fresh

NAN = float("nan")
STALE = 180.0

AGES = st.lists(
    st.one_of(st.just(NAN), st.floats(0, 90_000), st.floats(0, 400)), min_size=1, max_size=30
)


def outage(
    ages: Sequence[float],
    *,
    window: float = 30.0,
    running: UsageOutage | None = None,
    nodes: int | None = None,
    now: float = 1e5,
) -> UsageOutage | None:
    """The outage that lasts at time 100,000, or `now`, of nodes whose last windows have these ages
    at time 100,000. The first `nodes`, or all, have Node records."""
    age = np.array(ages)
    windows = np.where(np.isfinite(age), window, np.nan)
    fresh = is_fresh(age, max(STALE, 2 * window))
    has_node = np.arange(len(age)) < (len(age) if nodes is None else nodes)
    result = usage_outage(now, 1e5 - age, windows, fresh, has_node, running)
    return None if result is None or result.is_over else result


def lost(ages: Sequence[float]) -> list[bool]:
    """Which nodes the outage affects."""
    result, age = outage(ages), np.array(ages)
    assert result is not None
    affected: list[bool] = result.affects(1e5 - age, is_fresh(age, STALE)).tolist()
    return affected


class Fleet:
    """Nodes whose windows of 30 s end at each step of a minute while they are fresh."""

    def __init__(self, nodes: int) -> None:
        self.now = 1e6
        self.ends = np.full(nodes, self.now)
        self.last: UsageOutage | None = None

    def step(self, fresh: Iterable[int], seconds: float = 60.0) -> int:
        """Pass time; return how many nodes the outage affects."""
        self.now += seconds
        self.ends[list(fresh)] = self.now
        is_new = is_fresh(self.now - self.ends, STALE)
        nodes = np.ones(len(self.ends), np.bool_)
        windows = np.full(len(self.ends), 30.0)
        self.last = usage_outage(self.now, self.ends, windows, is_new, nodes, self.last)
        return 0 if self.last is None else int(self.last.affects(self.ends, is_new).sum())

    def run(self, seconds: float, fresh: Iterable[int] | None = None) -> int:
        """Pass time, in which these nodes, or all, are fresh."""
        names, affected = list(range(len(self.ends)) if fresh is None else fresh), 0
        for _ in range(round(seconds / 60)):
            affected = self.step(names)
        return affected

    @property
    def fresh(self) -> int:
        return int(is_fresh(self.now - self.ends, STALE).sum())


@pytest.mark.parametrize(
    ("ages", "is_outage"),
    [
        ([], False),
        ([NAN, NAN], False),  # new nodes: there was nothing to lose
        ([10, 10, 10], False),
        ([200, 10, 10], False),  # one silent node
        ([200, 210, 10, 10], False),  # half of them
        ([200, 210, 220, 10, 10], True),
        ([200, 2000, 20_000, 10, 10], False),  # most, but one after another
        ([200], True),  # no node is fresh
        ([200, 2000, 20_000], True),
        ([-300, -310, -320, 10], True),  # their clocks, or ours, are wrong
    ],
)
def test_outage_is_most_fresh_nodes_becoming_stale_together(
    ages: list[float], is_outage: bool
) -> None:
    assert (outage(ages) is not None) == is_outage


def test_nodes_that_were_silent_before_the_outage_stay_silent() -> None:
    assert lost([200, 215, 230, 5000, 10, NAN]) == [True, True, True, False, False, False]
    # The same with two nodes: the node that was silent for long is at fault, the other is not.
    assert lost([7200, 200]) == [False, True]


def test_nodes_that_fall_silent_during_the_outage_belong_to_it() -> None:
    assert lost([3000, 3015, 3030, 200]) == [True] * 4


def test_long_windows_end_together_within_two_of_their_lengths() -> None:
    ages = [1300.0, 1500.0, 1800.0, 10.0]
    assert outage(ages, window=600.0) is not None
    assert outage(ages, window=30.0) is None


def test_nodes_whose_windows_differ_in_length_are_lost_together() -> None:
    """One moment, at which windows of 300 s had ended up to 300 s ago."""
    age = np.concatenate([np.full(60, 1000.0), 1000.0 + np.linspace(0.0, 300.0, 40)])
    windows = np.repeat([30.0, 300.0], [60, 40])
    windows[0] = 1e12
    fresh, has_node = np.zeros(100, np.bool_), np.ones(100, np.bool_)
    result = usage_outage(1e5, 1e5 - age, windows, fresh, has_node)
    assert result is not None
    assert result.lost == 100


def test_nodes_that_are_lost_one_shortly_after_another_are_lost_together() -> None:
    """Workers stop one after another."""
    for span, fresh in ((300.0, 450), (3600.0, 0)):
        silent = (400.0 + np.linspace(0.0, span, 550)).tolist()
        result = outage([*silent, *[10.0] * fresh])
        assert result is not None
        assert result.lost == 550


def test_with_no_fresh_node_no_small_group_is_judged_alone() -> None:
    """Else nearly the whole fleet would be refused, for as long as no usage comes."""
    assert lost([400.0 + 600.0 * index for index in range(20)]) == [True] * 20
    assert lost([200.0, 210.0, 5000.0]) == [True, True, False]


def test_outage_ends_when_three_quarters_of_the_nodes_are_fresh() -> None:
    running = outage([600.0] * 8)
    for fresh in range(9):
        ages = [10.0] * fresh + [600.0] * (8 - fresh)
        assert (outage(ages) is not None) == (fresh < 4)
        assert (outage(ages, running=running) is not None) == (fresh < 6)


@pytest.mark.parametrize(("lasted", "catch_up"), [(600.0, CATCH_UP_SECONDS), (7200.0, 7200.0)])
def test_nodes_that_never_return_are_silent_on_their_own(lasted: float, catch_up: float) -> None:
    """As long as the outage lasted, and at least half an hour, after most nodes are back."""
    everything, dead_rack = [lasted] * 10, [10.0] * 7 + [lasted] * 3
    running = outage(dead_rack, running=outage(everything))
    assert running is not None
    assert running.lost == 3
    last = 1e5 + catch_up
    assert outage(dead_rack, running=running, now=last - 1) is not None
    assert outage(dead_rack, running=running, now=last) is None


def test_nodes_may_return_with_the_others_if_the_pipeline_stops_again() -> None:
    fleet = Fleet(10)
    fleet.run(300)
    fleet.run(600, fresh=range(0))
    fleet.run(600, fresh=range(7))
    assert fleet.run(7200, fresh=range(0)) == 10
    assert fleet.run(1700, fresh=range(7)) == 3
    assert fleet.run(7200, fresh=range(7)) == 0


@pytest.mark.parametrize("period_seconds", [240, 600, 1800])
def test_a_node_that_flaps_at_the_middle_neither_extends_an_outage_nor_begins_it_anew(
    period_seconds: int,
) -> None:
    """49 nodes return, one flaps, 50 never come back."""
    fleet = Fleet(100)
    fleet.run(300)
    assert fleet.run(3600, fresh=range(0)) == 100
    back_at, affected = fleet.now, 0
    for minute in range(2 * 1440):
        flaps = (minute * 60 // period_seconds) % 2 == 0
        affected = fleet.step(range(51 if flaps else 49))
        if fleet.now > back_at + 3600 + 2 * period_seconds:
            assert affected == 0
    # The 50 stay refused in the next outage.
    assert fleet.run(3600, fresh=range(20)) == 29


@pytest.mark.parametrize("lasted_days", [3, 300])
def test_nodes_have_at_most_a_day_to_return(lasted_days: int) -> None:
    fleet = Fleet(10)
    fleet.step(range(10))
    assert fleet.step(range(0), lasted_days * 86_400.0) == 10
    assert fleet.run(86_400, fresh=range(7)) == 3
    assert fleet.step(range(7)) == 0


def test_a_pipeline_that_stops_again_and_again_keeps_no_dead_rack() -> None:
    """For longer than a day. Nodes that return in between belong to each outage."""
    fleet, affected = Fleet(10), []
    fleet.run(300)
    for _ in range(40):
        affected.append(fleet.run(1800, fresh=range(0)))
        fleet.run(1200, fresh=range(7))
    assert affected[0] == 10
    assert affected[-1] == 7


def test_a_staggered_loss_begins_an_outage_also_after_another() -> None:
    """Workers stop one after another, each within two minutes of the one before."""
    fleet = Fleet(100)
    fleet.run(300)
    fleet.run(1800, fresh=range(0))
    assert fleet.run(3600, fresh=range(60)) == 0
    for stopped in range(2, 62, 2):
        fleet.step(range(60 - stopped))
    assert fleet.run(300, fresh=range(0)) == 60


def test_without_any_fresh_node_those_of_an_ended_outage_take_pods() -> None:
    fleet = Fleet(10)
    fleet.run(300)
    fleet.run(1800, fresh=range(0))
    assert fleet.run(3600, fresh=range(6)) == 0
    fleet.ends[:6] = NAN  # the fresh nodes are removed
    assert fleet.run(60, fresh=range(0)) == 4


def test_a_clock_that_is_set_back_lengthens_no_outage() -> None:
    everything, dead_rack = [600.0] * 10, [10.0] * 7 + [600.0] * 3
    running = outage(dead_rack, running=outage(everything), now=1e5 + 86_400)
    running = outage(dead_rack, running=running)
    assert outage(dead_rack, running=running, now=1e5 + CATCH_UP_SECONDS) is None


def test_an_outage_lasts_while_more_nodes_are_lost_than_fresh() -> None:
    """Refusing most of a fleet helps nobody: kube-scheduler knows which nodes are down."""
    most = [10.0] * 4 + [600.0] * 6
    running = outage([600.0] * 10)
    for now in (1e5, 1e5 + 86_400, 1e5 + 9e6):
        running = outage(most, running=running, now=now)
        assert running is not None


def test_an_outage_ends_whatever_was_silent_before() -> None:
    running = outage([86_400.0] * 3 + [200.0] * 7)
    assert running is not None
    assert running.lost == 7
    assert outage([86_400.0] * 3 + [10.0] * 7, running=running) is None


def test_an_outage_keeps_its_nodes_while_they_catch_up_at_different_speeds() -> None:
    speeds, running = np.linspace(0.8, 3.0, 100), outage([1800.0] * 100)
    for seconds in range(0, 1300, 10):
        ages = np.maximum(1800 - speeds * seconds, 5.0)
        fresh = is_fresh(ages, STALE)
        running = outage(ages.tolist(), running=running)
        if fresh.sum() >= 75:
            assert running is None
            return
        assert running is not None
        assert running.affects(1e5 - ages, fresh).sum() == (~fresh).sum()
    raise AssertionError("the nodes never caught up")


def test_nodes_without_a_node_record_do_not_count() -> None:
    ages = [10.0] * 4 + [300.0] * 6
    assert outage(ages) is not None
    assert outage(ages, nodes=5) is None
    assert outage(ages, nodes=0) is not None, "nobody writes records of Nodes"


@given(AGES)
def test_without_fresh_nodes_the_newest_silent_node_is_affected(ages: list[float]) -> None:
    silent = [age if not age < STALE else age + STALE for age in ages]
    if not np.isfinite(silent).any():
        assert outage(silent) is None
        return
    assert lost(silent)[int(np.nanargmin(silent))]


@given(AGES, st.booleans())
def test_an_outage_affects_no_fresh_and_no_unreported_node(ages: list[float], was: bool) -> None:
    running = UsageOutage(99_000.0, 1, 1) if was else None
    result, age = outage(ages, running=running), np.array(ages)
    if result is not None:
        affected = result.affects(1e5 - age, is_fresh(age, STALE))
        assert affected.sum() == result.lost
        assert not (affected & ~(age >= STALE)).any()
        assert result.lost > is_fresh(age, STALE).sum() or was


@given(AGES)
def test_what_begins_an_outage_does_not_end_it(ages: list[float]) -> None:
    if (began := outage(ages)) is not None:
        assert outage(ages, running=began) == began


@given(st.lists(st.floats(0, STALE - 1), min_size=1, max_size=30), st.data())
def test_a_stopped_pipeline_is_an_outage_whatever_was_silent_before(
    fresh: list[float], data: st.DataObject
) -> None:
    silent = data.draw(st.lists(st.floats(1e3, 9e4), max_size=len(fresh)))
    together = [age / STALE * TOGETHER_SECONDS for age in fresh]
    stopped = [age + STALE for age in together]
    assert lost(stopped + [age + STALE for age in silent])[: len(fresh)] == [True] * len(fresh)


STEPS = st.lists(
    st.tuples(st.sets(st.integers(0, 11)), st.sampled_from([60.0, 300.0, 4000.0, 1e5])),
    max_size=40,
)


@given(STEPS, st.sets(st.integers(0, 11), min_size=6))
def test_any_outage_ends_within_a_day_once_most_nodes_are_back(
    steps: list[tuple[set[int], float]], back: set[int]
) -> None:
    fleet = Fleet(12)
    for fresh, seconds in steps:
        fleet.step(fresh, seconds)
    for _ in range(30):
        fleet.step(back, 3600.0)
    assert fleet.step(back) == 0


@given(STEPS, st.lists(st.integers(5, 8), min_size=1, max_size=20))
def test_no_flapping_of_a_few_nodes_keeps_an_outage(
    steps: list[tuple[set[int], float]], numbers: list[int]
) -> None:
    """Of 12 nodes, 5 are always fresh and up to 3 more flap, once in 20 hours or more often. An
    outage that begins in the first 20 hours ends a day after most nodes were back."""
    fleet = Fleet(12)
    for fresh, seconds in steps:
        fleet.step(fresh, seconds)
    for hour in range(100):
        affected = fleet.step(range(numbers[hour % len(numbers)]), 3600.0)
        if hour > 20 + 20 + 24 and max(numbers) >= 6:
            assert affected == 0


@given(STEPS)
def test_an_outage_begins_whenever_most_fresh_nodes_become_stale_together(
    steps: list[tuple[set[int], float]],
) -> None:
    fleet = Fleet(12)
    for fresh, seconds in steps:
        fleet.step(fresh, seconds)
        if len(fresh) > 2 and fleet.fresh == len(fresh):
            before = sorted(fresh)
            branch = Fleet(12)
            branch.now, branch.last, branch.ends = fleet.now, fleet.last, fleet.ends.copy()
            # All were fresh for a while, then only a minority of them is.
            branch.run(600, fresh=before)
            left = before[: (len(before) - 1) // 2]
            branch.run(600, fresh=left)
            is_new = is_fresh(branch.now - branch.ends, STALE)
            assert branch.last is not None
            affected = branch.last.affects(branch.ends, is_new)
            assert affected[[node for node in before if node not in left]].all()


@given(STEPS)
def test_a_node_of_an_ended_outage_belongs_to_none_until_it_was_fresh(
    steps: list[tuple[set[int], float]],
) -> None:
    fleet, refused = Fleet(12), set[int]()
    for fresh, seconds in steps:
        fleet.step(fresh, seconds)
        is_new = is_fresh(fleet.now - fleet.ends, STALE)
        refused -= set(np.flatnonzero(is_new).tolist())
        if fleet.last is not None and fleet.fresh:
            affected = fleet.last.affects(fleet.ends, is_new)
            assert not affected[sorted(refused)].any()
        if fleet.last is not None and fleet.last.is_over:
            refused |= set(
                np.flatnonzero(~is_new & (fleet.ends <= fleet.last.settled_seconds)).tolist()
            )
