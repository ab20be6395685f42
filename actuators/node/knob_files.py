"""Files of cgroups: which file holds a knob in cgroup v1 and v2, and how it is written there.

A `KnobFile` converts between values in the units of `cgroup_values` and *text*: the kernel's words
about one knob (and one device), from which its exact former state can be written again. Nothing
here reads or writes files.

The period of a quota belongs to its text and is never changed: quotas and bursts are scaled to
`PERIOD_US`, rounded down, so that a rounded child never exceeds its parent.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from node_exporter.kernel.parse_files import cpu_list
from pipeline.errors import KernelFileError
from pipeline.processors.node_qos.cgroup_values import (
    LARGEST_SHARES,
    PERIOD_US,
    SMALLEST_QUOTA_US,
    SMALLEST_SHARES,
    UNLIMITED,
    Knob,
    Value,
    cpu_list_text,
)

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
LARGEST_WEIGHT: Final = 10_000
_MOST_BYTES: Final = UNLIMITED // PAGE_BYTES * PAGE_BYTES
"""What v1 shows for no limit of memory."""


def weight_of_shares(shares: int) -> int:
    """`cpu.weight` of v2 for `cpu.shares` of v1, as container runtimes convert it. Raises
    ValueError outside of 2..262144."""
    if not SMALLEST_SHARES <= shares <= LARGEST_SHARES:
        raise ValueError(f"{shares} shares are not in {SMALLEST_SHARES}..{LARGEST_SHARES}")
    steps = (shares - SMALLEST_SHARES) * (LARGEST_WEIGHT - 1)
    return 1 + steps // (LARGEST_SHARES - SMALLEST_SHARES)


def shares_of_weight(weight: int) -> int:
    """`cpu.shares` for `cpu.weight`, the reverse conversion. It is not exact: 1000 shares are the
    weight 39, which is 998 shares. Raises ValueError outside of 1..10000."""
    if not 1 <= weight <= LARGEST_WEIGHT:
        raise ValueError(f"the weight {weight} is not in 1..{LARGEST_WEIGHT}")
    steps = (weight - 1) * (LARGEST_SHARES - SMALLEST_SHARES)
    return SMALLEST_SHARES + steps // (LARGEST_WEIGHT - 1)


@dataclass(frozen=True)
class KnobFile:
    """A file with one number in `least`..`most`.

    `period_file` is the file with the period of the amounts, if it is another one. All methods
    raise KernelFileError, with `name` as its path, for text that is not in the file's format, and
    ValueError for values that it cannot hold.
    """

    name: str
    least: int = 0
    most: int = UNLIMITED
    period_file: str = ""

    def text(self, data: Sequence[bytes], device: str) -> str:
        """The text of the content of the file, and of `period_file` if there is one."""
        return _ascii(data[0], self.name)

    def value(self, text: str) -> Value:
        """The value that a text stands for."""
        return self._number(text)

    def text_of(self, value: Value, now: str) -> str:
        """The text of a value, where the file has the text `now`."""
        return str(self._checked(value))

    def line(self, text: str, device: str) -> str:
        """What has to be written to the file to give it a text."""
        return text

    def _checked(self, value: Value) -> int:
        if not isinstance(value, int) or not self.least <= value <= self.most:
            raise ValueError(f"{value} is not in {self.least}..{self.most}")
        return value

    def _number(self, word: str) -> int:
        digits = word.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
            raise KernelFileError(f"not a number: {word[:80]!r}", path=self.name)
        return int(word)


class SharesFile(KnobFile):
    """`cpu.shares`."""

    def value(self, text: str) -> Value:
        try:
            return self._checked(self._number(text))
        except ValueError as error:
            raise KernelFileError(f"not shares: {text[:80]!r}", path=self.name) from error


class WeightFile(KnobFile):
    """`cpu.weight`."""

    def value(self, text: str) -> Value:
        weight = self._number(text)
        if weight == 0:  # the kernel's rounding of the shares that cpu.idle implies
            return SMALLEST_SHARES
        try:
            return shares_of_weight(weight)
        except ValueError as error:
            raise KernelFileError(f"not a weight: {text[:80]!r}", path=self.name) from error

    def text_of(self, value: Value, now: str) -> str:
        return str(weight_of_shares(self._checked(value)))


class QuotaFile(KnobFile):
    """A quota or a burst; its text is `AMOUNT PERIOD`, as in `cpu.max`."""

    def text(self, data: Sequence[bytes], device: str) -> str:
        words = _ascii(data[0], self.name).split()
        if self.period_file:
            words += _ascii(data[1], self.period_file).split()[-1:]
        return " ".join(words)

    def value(self, text: str) -> Value:
        amount, period_us = self._amount_and_period(text)
        if amount in ("max", "-1"):
            return UNLIMITED
        return min(self._number(amount) * PERIOD_US // period_us, UNLIMITED)

    def text_of(self, value: Value, now: str) -> str:
        _, period_us = self._amount_and_period(now)
        amount = self._checked(value)
        if amount == UNLIMITED:
            return f"{'-1' if self.period_file else 'max'} {period_us}"
        return f"{max(amount * period_us // PERIOD_US, self.least)} {period_us}"

    def line(self, text: str, device: str) -> str:
        return text.split()[0] if self.period_file else text

    def _amount_and_period(self, text: str) -> tuple[str, int]:
        words = text.split()
        if len(words) != 2 or not (period_us := self._number(words[1])) > 0:
            raise KernelFileError(f"not an amount and a period: {text[:80]!r}", path=self.name)
        return words[0], period_us


class BytesFile(KnobFile):
    """An amount of memory, which the kernel keeps in whole pages."""

    def value(self, text: str) -> Value:
        if text in ("max", "-1"):
            return UNLIMITED
        amount = self._number(text)
        return UNLIMITED if amount >= _MOST_BYTES else amount

    def text_of(self, value: Value, now: str) -> str:
        amount = self._checked(value)
        if amount == UNLIMITED:
            return str(_MOST_BYTES) if self.name.endswith("_in_bytes") else "max"
        return str(amount // PAGE_BYTES * PAGE_BYTES)


class CpuListFile(KnobFile):
    """`cpuset.cpus`. The empty set means that the cgroup has no CPUs of its own."""

    def value(self, text: str) -> Value:
        return frozenset(cpu_list(text.encode(), self.name))

    def text_of(self, value: Value, now: str) -> str:
        if not isinstance(value, frozenset):
            raise ValueError(f"{value} is not a CPU set")
        return cpu_list_text(value)


class ThrottleFile(KnobFile):
    """`blkio.throttle.*`: a line `MAJ:MIN LIMIT` for each device that has a limit."""

    def text(self, data: Sequence[bytes], device: str) -> str:
        return _line_of(data[0], device, self.name) or "0"

    def value(self, text: str) -> Value:
        return self._number(text) or UNLIMITED

    def text_of(self, value: Value, now: str) -> str:
        amount = self._checked(value)
        return "0" if amount == UNLIMITED else str(amount)

    def line(self, text: str, device: str) -> str:
        return f"{device} {text}"


@dataclass(frozen=True)
class IoMaxFile(KnobFile):
    """`io.max`: a line `MAJ:MIN rbps=N wbps=N riops=N wiops=N` for each device that has a limit."""

    key: str = ""

    def text(self, data: Sequence[bytes], device: str) -> str:
        words = _line_of(data[0], device, self.name).split()
        limits = dict(word.partition("=")[::2] for word in words)
        return limits.get(self.key, "max")

    def value(self, text: str) -> Value:
        return UNLIMITED if text == "max" else self._number(text)

    def text_of(self, value: Value, now: str) -> str:
        amount = self._checked(value)
        return "max" if amount == UNLIMITED else str(amount)

    def line(self, text: str, device: str) -> str:
        return f"{device} {self.key}={text}"


class IoWeightFile(KnobFile):
    """`io.weight` and its likes: `default N`, and a line `MAJ:MIN N` for a device with its own.

    The text is `N`, or `default N` for a device that has the default of the cgroup. Without a
    device the knob is that default.
    """

    def text(self, data: Sequence[bytes], device: str) -> str:
        own = _line_of(data[0], device or "default", self.name)
        return own or f"default {_line_of(data[0], 'default', self.name)}"

    def value(self, text: str) -> Value:
        return self._number(text.removeprefix("default "))

    def line(self, text: str, device: str) -> str:
        return f"{device or 'default'} {text.split()[0]}"


@dataclass(frozen=True)
class IoCostFile(KnobFile):
    """`io.cost.qos` and `io.cost.model` of the root: a line `MAJ:MIN KEY=N ...` for each device.

    The text is `N`, `auto` while the kernel chooses the numbers itself, or empty for a device
    without a line. The kernel keeps the keys that a write does not name, and a number makes it stop
    choosing.
    """

    key: str = ""

    def text(self, data: Sequence[bytes], device: str) -> str:
        words = _line_of(data[0], device, self.name).split()
        numbers = dict(word.partition("=")[::2] for word in words)
        is_auto = numbers.get("ctrl") == "auto" and self.key != "enable"
        return "auto" if is_auto else numbers.get(self.key, "")

    def value(self, text: str) -> Value:
        # Percentages have two decimals.
        return 0 if text in ("", "auto") else self._number(text.partition(".")[0])

    def line(self, text: str, device: str) -> str:
        if text in ("", "auto"):
            return f"{device} {'enable=0' if self.key == 'enable' else 'ctrl=auto'}"
        return f"{device} {self.key}={text}"


class SchedFeaturesFile(KnobFile):
    """The scheduler's features: `NAME`, or `NO_NAME` for one that is off. The name stands in the
    place of a device, and the text is a word of the file."""

    def text(self, data: Sequence[bytes], device: str) -> str:
        words = _ascii(data[0], self.name).split()
        for word in (device, f"NO_{device}"):
            if word in words:
                return word
        raise KernelFileError(f"no feature {device[:80]!r}", path=self.name)

    def value(self, text: str) -> Value:
        return 0 if text.startswith("NO_") else 1

    def text_of(self, value: Value, now: str) -> str:
        name = now.removeprefix("NO_")
        return name if self._checked(value) else f"NO_{name}"


def _io_cost(prefix: str) -> dict[Knob, tuple[KnobFile, ...]]:
    """The knobs whose name is that of a file and of a key."""
    words = {knob: knob.removeprefix("io.").split() for knob in Knob if " " in knob}
    return {
        knob: (IoCostFile(f"{prefix}.{file}", most=_MOST.get(key, UNLIMITED), key=key),)
        for knob, (file, key) in words.items()
    }


_MOST: Final = {"enable": 1, "rpct": 100, "wpct": 100}


def _ascii(data: bytes, path: str) -> str:
    try:
        return data.decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise KernelFileError("not ASCII text", path=path) from error


def _line_of(data: bytes, key: str, path: str) -> str:
    """The rest of the line that starts with the word `key`; empty if there is none."""
    for line in _ascii(data, path).splitlines():
        first, _, rest = line.partition(" ")
        if first == key:
            return rest.strip()
    return ""


_IN_BOTH: Final[dict[Knob, tuple[KnobFile, ...]]] = {
    Knob.CPU_IDLE: (KnobFile("cpu.idle", most=1),),
    Knob.CPU_IDENTITY: (KnobFile("cpu.bvt_warp_ns", least=-1, most=2),),
    Knob.CPUSET: (CpuListFile("cpuset.cpus"),),
    Knob.MEMORY_MIN: (BytesFile("memory.min"),),
    Knob.MEMORY_LOW: (BytesFile("memory.low"),),
    Knob.MEMORY_HIGH: (BytesFile("memory.high"),),
    Knob.MEMORY_OOM_GROUP: (KnobFile("memory.oom.group", most=1),),
    Knob.MEMORY_PRIORITY: (KnobFile("memory.priority", most=12),),
    Knob.MEMORY_PRIORITY_OOM: (KnobFile("memory.use_priority_oom", most=1),),
    Knob.MEMORY_WMARK_RATIO: (KnobFile("memory.wmark_ratio", most=100),),
    Knob.MEMORY_WMARK_SCALE: (KnobFile("memory.wmark_scale_factor", least=1, most=1000),),
    Knob.MEMORY_WMARK_MIN_ADJ: (KnobFile("memory.wmark_min_adj", least=-25, most=50),),
    Knob.PAGE_CACHE_ENABLE: (KnobFile("memory.pagecache_limit.enable", most=1),),
    Knob.PAGE_CACHE_SIZE: (KnobFile("memory.pagecache_limit.size"),),
    Knob.PAGE_CACHE_SYNC: (KnobFile("memory.pagecache_limit.sync", most=1),),
}

_OF_NODE: Final[dict[Knob, tuple[KnobFile, ...]]] = {
    Knob.NODE_MIN_FREE_KBYTES: (KnobFile("sys/vm/min_free_kbytes"),),
    Knob.NODE_WATERMARK_SCALE: (KnobFile("sys/vm/watermark_scale_factor", least=1, most=3000),),
    Knob.NODE_GROUP_IDENTITY: (KnobFile("sys/kernel/sched_group_identity_enabled", most=1),),
    Knob.NODE_IDLE_SAVER: (KnobFile("sys/kernel/sched_idle_saver_wmark"),),
    Knob.NODE_MEMCG_REAP: (KnobFile("kernel/mm/memcg_reaper/reap_background", most=1),),
    Knob.NODE_PAGE_CACHE_LIMIT: (KnobFile("kernel/mm/pagecache_limit/enabled", most=1),),
    Knob.NODE_SCHED_FEATURE: (
        SchedFeaturesFile("kernel/debug/sched/features", most=1),
        SchedFeaturesFile("kernel/debug/sched_features", most=1),
    ),
}

KNOB_FILES: Final[dict[Literal[1, 2], dict[Knob, tuple[KnobFile, ...]]]] = {
    1: _IN_BOTH
    | _OF_NODE
    | _io_cost("blkio")
    | {
        Knob.CPU_SHARES: (SharesFile("cpu.shares", SMALLEST_SHARES, LARGEST_SHARES),),
        Knob.CPU_QUOTA: (
            QuotaFile("cpu.cfs_quota_us", SMALLEST_QUOTA_US, period_file="cpu.cfs_period_us"),
        ),
        Knob.CPU_BURST: (
            QuotaFile("cpu.cfs_burst_us", most=UNLIMITED - 1, period_file="cpu.cfs_period_us"),
        ),
        Knob.MEMORY_LIMIT: (BytesFile("memory.limit_in_bytes", PAGE_BYTES),),
        Knob.IO_READ_BPS: (ThrottleFile("blkio.throttle.read_bps_device", 1),),
        Knob.IO_WRITE_BPS: (ThrottleFile("blkio.throttle.write_bps_device", 1),),
        Knob.IO_READ_IOPS: (ThrottleFile("blkio.throttle.read_iops_device", 1),),
        Knob.IO_WRITE_IOPS: (ThrottleFile("blkio.throttle.write_iops_device", 1),),
        Knob.IO_WEIGHT: (
            IoWeightFile("blkio.cost.weight", 1, LARGEST_WEIGHT),
            IoWeightFile("blkio.bfq.weight_device", 1, 1000),
        ),
    },
    2: _IN_BOTH
    | _OF_NODE
    | _io_cost("io")
    | {
        Knob.CPU_SHARES: (WeightFile("cpu.weight", SMALLEST_SHARES, LARGEST_SHARES),),
        Knob.CPU_QUOTA: (QuotaFile("cpu.max", SMALLEST_QUOTA_US),),
        Knob.CPU_BURST: (QuotaFile("cpu.max.burst", most=UNLIMITED - 1, period_file="cpu.max"),),
        Knob.MEMORY_LIMIT: (BytesFile("memory.max", PAGE_BYTES),),
        Knob.IO_READ_BPS: (IoMaxFile("io.max", 1, key="rbps"),),
        Knob.IO_WRITE_BPS: (IoMaxFile("io.max", 1, key="wbps"),),
        Knob.IO_READ_IOPS: (IoMaxFile("io.max", 1, key="riops"),),
        Knob.IO_WRITE_IOPS: (IoMaxFile("io.max", 1, key="wiops"),),
        Knob.IO_WEIGHT: (
            IoWeightFile("io.weight", 1, LARGEST_WEIGHT),
            IoWeightFile("io.bfq.weight", 1, 1000),
        ),
    },
}
"""The files of each knob by version of the cgroup; of several, the first that a kernel has holds
it."""
