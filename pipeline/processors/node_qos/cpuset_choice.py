"""Choose the CPUs that best-effort work runs on: how many, and which, as Koordinator does."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

from pipeline.processors.node_qos.cgroup_values import CpuSet
from pipeline.processors.node_qos.node_state import LogicalCpu

LEAST_CPUS: Final = 2
_ROUNDS_TO_ALL: Final = 10
"""A CPU set grows by a tenth of the node's CPUs, rounded up, in a round."""


class CpusetStep(NamedTuple):
    """How many CPUs are wanted, how many of the chosen ones LSR pods own, and the chosen ones:
    fewer if fewer may be used."""

    wanted: int
    from_lsr: int
    cpus: CpuSet


def next_cpuset(
    allowed_millicores: int,
    cpus: Iterable[LogicalCpu],
    *,
    old_size: int,
    usable: CpuSet,
    lsr_owned: CpuSet,
    node_cpus: int,
) -> CpusetStep:
    """The CPU set for so many millicores, of the CPUs that are `usable`.

    It has at least `LEAST_CPUS`, and grows by at most a tenth of `node_cpus` above `old_size`.
    CPUs of LSR pods are in it by their share of the usable ones, so that they carry no more of the
    best-effort work than the others.
    """
    wanted = max(LEAST_CPUS, -(-allowed_millicores // 1000))
    wanted = min(wanted, old_size - (-node_cpus // _ROUNDS_TO_ALL))
    open_cpus = [cpu for cpu in cpus if cpu.cpu in usable]
    of_lsr = [cpu for cpu in open_cpus if cpu.cpu in lsr_owned]
    others = [cpu for cpu in open_cpus if cpu.cpu not in lsr_owned]
    # Koordinator takes all or none of each kind, and so keeps CPUs that may not be used any longer.
    size = min(wanted, len(open_cpus))
    from_lsr = size * len(of_lsr) // len(open_cpus) if open_cpus else 0
    chosen = choose_cpus(from_lsr, of_lsr) + choose_cpus(size - from_lsr, others)
    return CpusetStep(wanted, from_lsr, frozenset(chosen))


def choose_cpus(count: int, cpus: Iterable[LogicalCpu]) -> tuple[int, ...]:
    """Choose CPUs for best-effort work, in the order of choice; none if there are fewer.

    The buckets are the sockets of NUMA nodes, the largest first. Each in turn gives a pair of
    hyper-threads, so that best-effort work shares cores with itself, until one CPU is wanted or no
    bucket has a pair. Then each in turn gives a single CPU.
    """
    buckets = _buckets(cpus)
    if not 0 < count <= sum(map(len, buckets)):
        return ()
    chosen: list[int] = []
    turn = 0
    before_round = -1
    while count - len(chosen) > 1:
        bucket = turn % len(buckets)
        if bucket == 0:
            if len(chosen) == before_round:
                break
            before_round = len(chosen)
        chosen += _take_pair(buckets[bucket])
        turn += 1
    while len(chosen) < count:
        free = buckets[turn % len(buckets)]
        if free:
            chosen.append(free.pop(0).cpu)
        turn += 1
    return tuple(chosen)


def _buckets(cpus: Iterable[LogicalCpu]) -> list[list[LogicalCpu]]:
    """CPUs by NUMA node and socket, in the order of cores; the largest buckets first."""
    buckets: dict[tuple[int, int], list[LogicalCpu]] = {}
    for cpu in sorted(cpus, key=lambda cpu: (cpu.core, cpu.cpu)):
        buckets.setdefault((cpu.node, cpu.socket), []).append(cpu)
    return sorted(buckets.values(), key=lambda bucket: (-len(bucket), bucket[0].cpu))


def _take_pair(free: list[LogicalCpu]) -> list[int]:
    """Remove the first two CPUs of one core; empty if there are none."""
    for index, (one, other) in enumerate(pairwise(free)):
        if one.core == other.core:
            del free[index : index + 2]
            return [one.cpu, other.cpu]
    return []
