"""The order of writes, on a model of the kernel's rules of cgroup v1, and what v2 allows.

`tests/actuators/node/test_cgroup_files.py` runs it on the kernel itself.
"""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, Value
from pipeline.processors.node_qos.write_order import (
    WriteOrder,
    final_values,
    order_writes,
    parent_paths,
)

PATHS = ("", "be", "be/pod", "be/pod/a", "be/pod/b", "be/other", "ls")
KNOBS = (Knob.CPU_IDLE, Knob.CPU_SHARES, Knob.CPU_QUOTA, Knob.CPU_BURST, Knob.CPUSET)
PLACES = [Place(path, knob) for path in PATHS for knob in KNOBS]
CPUS = frozenset(range(6))


class RefusedError(Exception):
    """The kernel does not accept a write."""


class ModelKernel:
    """What Linux 6.18 accepts in cgroup v1, measured by `kernel_v1_write_rules`."""

    def __init__(self) -> None:
        values: dict[Knob, Value] = {
            Knob.CPU_IDLE: 0, Knob.CPU_SHARES: 1024, Knob.CPU_QUOTA: UNLIMITED, Knob.CPU_BURST: 0,
            Knob.CPUSET: CPUS,
        }  # fmt: skip
        self.values = {place: values[place.knob] for place in PLACES}

    def write(self, place: Place, value: Value) -> None:
        above = [self.values[place._replace(path=path)] for path in parent_paths(place.path)]
        below = [
            self.values[other]
            for other in PLACES
            if other.knob is place.knob and place.path in parent_paths(other.path)
        ]
        refused = False
        if isinstance(value, frozenset):
            sets = [other for other in (*above[:1], *below) if isinstance(other, frozenset)]
            refused = any(not value <= parent for parent in sets[: len(above[:1])])
            refused |= any(not child <= value for child in sets[len(above[:1]) :])
        elif place.knob is Knob.CPU_QUOTA:
            limits = [limit for limit in above if isinstance(limit, int)]
            limited = [limit for limit in below if isinstance(limit, int) and limit != UNLIMITED]
            refused = value != UNLIMITED and any(value > limit for limit in limits)
            refused |= (
                any(limit > value for limit in limited)
                or self._number(place, Knob.CPU_BURST) > value
            )
        elif place.knob is Knob.CPU_BURST:
            refused = value > self._number(place, Knob.CPU_QUOTA)
        elif place.knob is Knob.CPU_SHARES:
            refused = self._number(place, Knob.CPU_IDLE) == 1
        if refused:
            raise RefusedError(f"{place}: {value}")
        if place.knob is Knob.CPU_IDLE and value != self.values[place]:
            self.values[place._replace(knob=Knob.CPU_SHARES)] = 3 if value else 1024
        self.values[place] = value

    def _number(self, place: Place, knob: Knob) -> int:
        value = self.values[place._replace(knob=knob)]
        assert isinstance(value, int)
        return value


QUOTAS = st.sampled_from([1000, 20_000, 50_000, 100_000, 150_000, UNLIMITED])
VALUES: dict[Knob, st.SearchStrategy[Value]] = {
    Knob.CPU_IDLE: st.integers(0, 1),
    Knob.CPU_SHARES: st.sampled_from([2, 100, 1024, 2048]),
    Knob.CPU_QUOTA: QUOTAS,
    Knob.CPU_BURST: st.sampled_from([0, 10_000, 50_000, 100_000]),
    Knob.CPUSET: st.frozensets(st.sampled_from(sorted(CPUS)), min_size=1),
}


@st.composite
def wishes(draw: st.DrawFn) -> dict[Place, Value]:
    places = draw(st.lists(st.sampled_from(PLACES), unique=True, max_size=20))
    return {place: draw(VALUES[place.knob]) for place in places}


@st.composite
def kernels(draw: st.DrawFn) -> ModelKernel:
    """A kernel in a state that arbitrary writes can lead to."""
    kernel = ModelKernel()
    for wish in draw(st.lists(wishes(), max_size=3)):
        for place, value in wish.items():
            try:
                kernel.write(place, value)
            except RefusedError:
                continue
    return kernel


def run(kernel: ModelKernel, order: WriteOrder) -> None:
    for write in (*order.widening, *order.narrowing):
        kernel.write(write.place, write.value)


def is_between(value: Value, old: Value, new: Value) -> bool:
    if isinstance(value, frozenset) and isinstance(old, frozenset) and isinstance(new, frozenset):
        return value <= old | new
    return value in (old, new)


@given(kernels(), wishes())
def test_the_kernel_accepts_every_write_and_ends_at_the_final_values(
    kernel: ModelKernel, wanted: dict[Place, Value]
) -> None:
    before = dict(kernel.values)
    finals = final_values(before, wanted)
    order = order_writes(before, wanted)
    written = [write.place for write in (*order.widening, *order.narrowing)]
    assert all(written.count(place) <= 2 for place in written)
    for write in (*order.widening, *order.narrowing):
        kernel.write(write.place, write.value)
        assert is_between(write.value, before[write.place], finals[write.place])
    for place, value in finals.items():
        if not is_implied(place, kernel.values, wanted):
            assert kernel.values[place] == value
    assert order_writes(kernel.values, wanted) == ([], [])


def is_implied(place: Place, values: Mapping[Place, Value], wanted: Mapping[Place, Value]) -> bool:
    """Whether shares follow from `cpu.idle`, or from having left it while nobody wants others."""
    is_idle = values[place._replace(knob=Knob.CPU_IDLE)] == 1
    return place.knob is Knob.CPU_SHARES and (is_idle or place not in wanted)


@given(kernels(), wishes())
def test_wanted_values_hold_as_far_as_parents_and_quotas_allow(
    kernel: ModelKernel, wanted: dict[Place, Value]
) -> None:
    finals = final_values(kernel.values, wanted)
    for place, value in finals.items():
        wish = wanted.get(place, kernel.values[place])
        above = [finals[place._replace(path=path)] for path in parent_paths(place.path)]
        if isinstance(value, frozenset) and isinstance(wish, frozenset):
            assert all(value <= parent for parent in above[:1] if isinstance(parent, frozenset))
            assert value == wish or value == above[0] or value < wish
        elif value != wish and isinstance(value, int) and isinstance(wish, int):
            assert place.knob is Knob.CPU_SHARES or value < wish
            if place.knob is Knob.CPU_QUOTA:
                assert value in above
            elif place.knob is Knob.CPU_BURST:
                assert value == finals[place._replace(knob=Knob.CPU_QUOTA)]


def quota(path: str) -> Place:
    return Place(path, Knob.CPU_QUOTA)


def burst(path: str) -> Place:
    return Place(path, Knob.CPU_BURST)


def test_parents_widen_before_children_and_narrow_after_them() -> None:
    parent, child = quota("be"), quota("be/pod")
    wide, narrow = {parent: 100_000, child: 90_000}, {parent: 50_000, child: 40_000}
    assert order_writes(narrow, wide) == ([(parent, 100_000), (child, 90_000)], [])
    assert order_writes(wide, narrow) == ([], [(child, 40_000), (parent, 50_000)])


def test_a_quota_rises_before_its_burst_and_sinks_after_it() -> None:
    low = {quota("pod"): 50_000, burst("pod"): 50_000}
    high = {quota("pod"): 100_000, burst("pod"): 100_000}
    assert [write.place.knob for write in order_writes(low, high).widening] == [
        Knob.CPU_QUOTA, Knob.CPU_BURST,
    ]  # fmt: skip
    assert [write.place.knob for write in order_writes(high, low).narrowing] == [
        Knob.CPU_BURST, Knob.CPU_QUOTA,
    ]  # fmt: skip


def test_a_child_that_nobody_claims_makes_room_for_a_lower_parent() -> None:
    current: dict[Place, Value] = {quota("be"): UNLIMITED, quota("be/pod"): 80_000}
    order = order_writes(current, {quota("be"): 50_000})
    assert order == ([], [(quota("be/pod"), 50_000), (quota("be"), 50_000)])


def test_a_burst_that_nobody_claims_makes_room_for_a_lower_quota() -> None:
    current: dict[Place, Value] = {quota("pod"): UNLIMITED, burst("pod"): 80_000}
    order = order_writes(current, {quota("pod"): 50_000})
    assert order == ([], [(burst("pod"), 50_000), (quota("pod"), 50_000)])


def test_in_v2_a_child_keeps_more_than_its_parent_has_but_no_burst_above_its_quota() -> None:
    child = Place("be/pod", Knob.CPUSET)
    current: dict[Place, Value] = {
        quota("be"): UNLIMITED, quota("be/pod"): 80_000, burst("be/pod"): 0,
        Place("be", Knob.CPUSET): CPUS, child: frozenset({4, 5}),
    }  # fmt: skip
    desired: dict[Place, Value] = {
        quota("be"): 50_000, Place("be", Knob.CPUSET): frozenset({0}), child: frozenset({5}),
        burst("be/pod"): 90_000,
    }  # fmt: skip
    finals = final_values(current, desired, set())
    assert finals == {**current, **desired, burst("be/pod"): 80_000}
    order = order_writes(current, desired, set())
    assert dict([*order.widening, *order.narrowing]) == desired | {burst("be/pod"): 80_000}


def test_cpus_that_move_are_the_union_between_the_passes() -> None:
    parent, child = Place("be", Knob.CPUSET), Place("be/pod", Knob.CPUSET)
    old, new, both = frozenset({0, 1}), frozenset({1, 2}), frozenset({0, 1, 2})
    order = order_writes({parent: old, child: old}, {parent: new, child: new})
    assert order == ([(parent, both), (child, both)], [(child, new), (parent, new)])


def test_a_child_without_an_allowed_cpu_gets_those_of_its_parent() -> None:
    parent, child = Place("be", Knob.CPUSET), Place("be/pod", Knob.CPUSET)
    current = {parent: CPUS, child: frozenset({4, 5})}
    order = order_writes(current, {parent: frozenset({0, 1})})
    assert order.narrowing[0] == (child, frozenset({0, 1}))


def test_shares_are_written_again_when_idle_ends_and_not_while_it_holds() -> None:
    idle, shares = Place("be", Knob.CPU_IDLE), Place("be", Knob.CPU_SHARES)
    held: dict[Place, Value] = {idle: 1, shares: 3}
    assert order_writes(held, {idle: 1, shares: 512}) == ([], [])
    assert order_writes(held, {idle: 0, shares: 512}) == ([(idle, 0), (shares, 512)], [])
    assert order_writes({idle: 0, shares: 512}, {idle: 1, shares: 256}) == ([], [(idle, 1)])


def test_a_place_that_cannot_be_read_is_not_written() -> None:
    assert order_writes({}, {quota("gone"): 50_000}) == ([], [])
