"""Values of cgroups in one unit for v1 and v2, and which of two values allows more.

`Knob` names what a cgroup limits, in the units of this project; the kernel's files and their units
are the business of the actuator. All amounts are whole numbers, and `UNLIMITED` is one above all
others, so that amounts compare as numbers.
"""

from enum import StrEnum
from typing import Final, NamedTuple

UNLIMITED: Final = 2**63 - 1
"""No limit: `max` in files of v2, -1 or a very large number in those of v1."""

PERIOD_US: Final = 100_000
"""The period that `Knob.CPU_QUOTA` and `Knob.CPU_BURST` refer to, in microseconds: the kernel's
default, which container runtimes use."""

SMALLEST_SHARES: Final = 2
LARGEST_SHARES: Final = 262_144
SMALLEST_QUOTA_US: Final = 1_000
SMALLEST_SUPPRESSED_QUOTA_US: Final = 2_000
"""Best-effort work always keeps this much, as with Koordinator."""

CpuSet = frozenset[int]
Value = int | CpuSet
"""A CPU set for `Knob.CPUSET`, a whole number for the others."""


class Knob(StrEnum):
    """What a cgroup limits.

    CPU_SHARES is the weight in units of v1, CPU_QUOTA and CPU_BURST are microseconds per
    `PERIOD_US`, memory is bytes, IO_* are operations or bytes per second, IO_WEIGHT is a
    percentage, the others are numbers as in the files of the same name. A name with a space is that
    of a file and of a word in it: IO_COST_* and IO_MODEL_* are of the root alone. NODE_* are no
    cgroup's: they are files below /proc and /sys, and have the empty path.
    """

    CPU_SHARES = "cpu.shares"
    CPU_QUOTA = "cpu.quota"
    CPU_BURST = "cpu.burst"
    CPU_IDLE = "cpu.idle"
    CPU_IDENTITY = "cpu.bvt_warp_ns"
    CPUSET = "cpuset.cpus"
    MEMORY_LIMIT = "memory.limit"
    MEMORY_MIN = "memory.min"
    MEMORY_LOW = "memory.low"
    MEMORY_HIGH = "memory.high"
    MEMORY_OOM_GROUP = "memory.oom.group"
    MEMORY_PRIORITY = "memory.priority"
    MEMORY_PRIORITY_OOM = "memory.use_priority_oom"
    MEMORY_WMARK_RATIO = "memory.wmark_ratio"
    MEMORY_WMARK_SCALE = "memory.wmark_scale_factor"
    MEMORY_WMARK_MIN_ADJ = "memory.wmark_min_adj"
    PAGE_CACHE_ENABLE = "memory.pagecache_limit.enable"
    PAGE_CACHE_SIZE = "memory.pagecache_limit.size"
    PAGE_CACHE_SYNC = "memory.pagecache_limit.sync"
    IO_READ_BPS = "io.read_bps"
    IO_WRITE_BPS = "io.write_bps"
    IO_READ_IOPS = "io.read_iops"
    IO_WRITE_IOPS = "io.write_iops"
    IO_WEIGHT = "io.weight"
    IO_COST_ENABLE = "io.cost.qos enable"
    IO_COST_READ_PERCENT = "io.cost.qos rpct"
    IO_COST_READ_LATENCY = "io.cost.qos rlat"
    IO_COST_WRITE_PERCENT = "io.cost.qos wpct"
    IO_COST_WRITE_LATENCY = "io.cost.qos wlat"
    IO_MODEL_READ_BPS = "io.cost.model rbps"
    IO_MODEL_READ_SEQ_IOPS = "io.cost.model rseqiops"
    IO_MODEL_READ_RAND_IOPS = "io.cost.model rrandiops"
    IO_MODEL_WRITE_BPS = "io.cost.model wbps"
    IO_MODEL_WRITE_SEQ_IOPS = "io.cost.model wseqiops"
    IO_MODEL_WRITE_RAND_IOPS = "io.cost.model wrandiops"
    NODE_MIN_FREE_KBYTES = "proc.sys.vm.min_free_kbytes"
    NODE_WATERMARK_SCALE = "proc.sys.vm.watermark_scale_factor"
    NODE_GROUP_IDENTITY = "proc.sys.kernel.sched_group_identity_enabled"
    NODE_IDLE_SAVER = "proc.sys.kernel.sched_idle_saver_wmark"
    NODE_MEMCG_REAP = "sys.kernel.mm.memcg_reaper.reap_background"
    NODE_PAGE_CACHE_LIMIT = "sys.kernel.mm.pagecache_limit.enabled"
    NODE_SCHED_FEATURE = "sys.kernel.debug.sched.features"


class Place(NamedTuple):
    """One knob of one cgroup.

    `path` is relative to the root of the hierarchy, empty for the root. `device` is `major:minor`
    of the block device of an IO knob, the name of a scheduler feature, empty for the others.
    """

    path: str
    knob: Knob
    device: str = ""

    def __str__(self) -> str:
        # The name of a cgroup may have bytes that are no text.
        path = self.path.encode(errors="backslashreplace").decode() or "/"
        return f"{path} {self.knob}{' ' if self.device else ''}{self.device}"


_NARROWER_IF_LARGER: Final = frozenset({Knob.CPU_IDLE})


def is_wider(knob: Knob, value: Value, other: Value) -> bool:
    """Whether `value` allows something that `other` does not.

    Of two CPU sets each may be wider than the other.
    """
    if isinstance(value, frozenset) or isinstance(other, frozenset):
        return not _cpus(value) <= _cpus(other)
    return value < other if knob in _NARROWER_IF_LARGER else value > other


def narrowest(knob: Knob, values: list[Value]) -> Value:
    """The value that satisfies all of `values`, which are not empty.

    Of CPU sets that is the intersection, or the smallest set if no CPU is in all: a cgroup cannot
    run on no CPU.
    """
    if knob is Knob.CPUSET:
        sets = [_cpus(value) for value in values]
        return frozenset.intersection(*sets) or min(sets, key=lambda cpus: (len(cpus), min(cpus)))
    numbers = [value for value in values if isinstance(value, int)]
    return max(numbers) if knob in _NARROWER_IF_LARGER else min(numbers)


def shares_of_millicores(cpu_millicores: int) -> int:
    """`cpu.shares` of a request, as the kubelet converts it."""
    return min(max(cpu_millicores * 1024 // 1000, SMALLEST_SHARES), LARGEST_SHARES)


def quota_us_of_millicores(cpu_millicores: int) -> int:
    """Quota of a limit; 0 or less is unlimited, as with the kubelet."""
    if cpu_millicores <= 0:
        return UNLIMITED
    return max(SMALLEST_QUOTA_US, cpu_millicores * PERIOD_US // 1000)


def text_of_value(value: Value) -> str:
    """A value for logs and records: `max`, a number, or a CPU list."""
    if isinstance(value, frozenset):
        return cpu_list_text(value)
    return "max" if value >= UNLIMITED else str(value)


def cpu_list_text(cpus: CpuSet) -> str:
    """A CPU set in the kernel's list format, such as `0-2,7`; empty for the empty set."""
    parts: list[str] = []
    ordered = sorted(cpus)
    start = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or ordered[end] != ordered[end - 1] + 1:
            first, last = ordered[start], ordered[end - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = end
    return ",".join(parts)


def _cpus(value: Value) -> CpuSet:
    if isinstance(value, frozenset):
        return value
    raise TypeError(f"{value} is not a CPU set")
