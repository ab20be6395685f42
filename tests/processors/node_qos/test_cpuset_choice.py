"""Choice of CPUs for best-effort work, against a slow reference by the words of the rule."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.cpuset_choice import LEAST_CPUS, choose_cpus, next_cpuset
from pipeline.processors.node_qos.node_state import LogicalCpu
from tests.processors.node_qos.topologies import ANY, regular, topology


def reference(count: int, cpus: Sequence[LogicalCpu]) -> list[int]:
    """The choice in sets of unused CPUs: nothing is removed from a list."""
    if count > len(cpus):
        return []
    names = {(cpu.node, cpu.socket) for cpu in cpus}
    members = {name: [c for c in cpus if (c.node, c.socket) == name] for name in names}

    def first_cpu(name: tuple[int, int]) -> int:
        return min(members[name], key=lambda cpu: (cpu.core, cpu.cpu)).cpu

    order = sorted(names, key=lambda name: (-len(members[name]), first_cpu(name)))
    chosen: list[int] = []

    def unused(name: tuple[int, int]) -> list[LogicalCpu]:
        return [cpu for cpu in members[name] if cpu.cpu not in chosen]

    next_bucket = 0
    found_pair = True
    while found_pair and count - len(chosen) > 1:
        found_pair = False
        for position, name in enumerate(order):
            if count - len(chosen) <= 1:
                break
            next_bucket = (position + 1) % len(order)
            pairs = [
                (one.core, *sorted((one.cpu, other.cpu)))
                for one, other in combinations(unused(name), 2)
                if one.core == other.core
            ]
            if pairs:
                found_pair = True
                chosen += min(pairs)[1:]
    while len(chosen) < count:
        free = sorted((cpu.core, cpu.cpu) for cpu in unused(order[next_bucket]))
        chosen += [cpu for _, cpu in free[:1]]
        next_bucket = (next_bucket + 1) % len(order)
    return chosen


@given(ANY, st.data())
def test_the_choice_is_that_of_the_reference(cpus: list[LogicalCpu], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(cpus) + 1))
    assert list(choose_cpus(count, cpus)) == reference(count, cpus)


@given(ANY, st.data())
def test_as_many_different_cpus_are_chosen_as_are_wanted(
    cpus: list[LogicalCpu], data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, len(cpus)))
    chosen = choose_cpus(count, cpus)
    assert len(chosen) == len({*chosen}) == count
    assert {*chosen} <= {cpu.cpu for cpu in cpus}


@given(regular(), st.data())
def test_at_most_one_core_is_shared_with_other_work(
    cpus: list[LogicalCpu], data: st.DataObject
) -> None:
    threads = Counter(cpu.core for cpu in cpus)
    chosen = {*choose_cpus(data.draw(st.integers(0, len(cpus))), cpus)}
    used = Counter(cpu.core for cpu in cpus if cpu.cpu in chosen)
    assert sum(used[core] < threads[core] for core in used) <= 1


def test_a_large_machine_is_filled_socket_by_socket_in_turn() -> None:
    cpus = topology(2, 32, 2, siblings_apart=True)
    assert choose_cpus(6, cpus) == (0, 64, 32, 96, 1, 65)


@given(ANY, st.data())
def test_a_step_keeps_its_limits(cpus: list[LogicalCpu], data: st.DataObject) -> None:
    numbers = sorted(cpu.cpu for cpu in cpus)
    subset = st.frozensets(st.sampled_from(numbers)) if numbers else st.just(frozenset[int]())
    usable, lsr = data.draw(subset), data.draw(subset)
    allowed, old = data.draw(st.integers(-50_000, 50_000)), data.draw(st.integers(0, 40))
    step = next_cpuset(
        allowed, cpus, old_size=old, usable=usable, lsr_owned=lsr, node_cpus=len(cpus)
    )
    assert step.cpus <= usable
    assert len(step.cpus) == min(step.wanted, len(usable))
    assert step.wanted <= max(LEAST_CPUS, -(-allowed // 1000))
    assert step.wanted - old <= -(-len(cpus) // 10)
    assert len(step.cpus & lsr) == step.from_lsr
    if usable:
        # LSR pods have no larger part of the set than of the usable CPUs.
        assert step.from_lsr * len(usable) <= len(step.cpus) * len(usable & lsr)


def test_with_fewer_cpus_than_wanted_all_of_both_kinds_are_chosen() -> None:
    cpus = topology(1, 8, 1, siblings_apart=False)
    usable = frozenset({0, 1, 2})
    step = next_cpuset(8000, cpus, old_size=8, usable=usable, lsr_owned=frozenset({0}), node_cpus=8)
    assert step == (8, 1, usable)
