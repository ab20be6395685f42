"""Parse the contents of kernel files into integers, cheaply enough for every second.

Each function takes the bytes of one file, and its path for the error. Names of results contain the
unit. A missing field, a word that is not a number or a number with more digits than the kernel can
print raises `KernelFileError`: a wrong number would train models for days. Fields that no caller
needs are ignored.
"""

import re
from typing import Final, NamedTuple

from pipeline.errors import KernelFileError

CPUS_MAX: Final = 1 << 16  # far above CONFIG_NR_CPUS; bounds what "0-4294967295" may allocate


# The fields as kernels print them, which takes a fraction of the time of five searches.
_MEMORY_V1: Final = re.compile(
    rb"total_inactive_anon (\d{1,20})\ntotal_active_anon (\d{1,20})\n"
    rb"total_inactive_file (\d{1,20})\ntotal_active_file (\d{1,20})\n"
    rb"total_unevictable (\d{1,20})\n"
)
_MEMORY_V2: Final = re.compile(
    rb"\ninactive_anon (\d{1,20})\nactive_anon (\d{1,20})\ninactive_file (\d{1,20})\n"
    rb"active_file (\d{1,20})\nunevictable (\d{1,20})\n"
)


class Throttling(NamedTuple):
    """CFS bandwidth counters since the cgroup was created."""

    periods: int
    throttled_periods: int
    throttled_ns: int


class CgroupMemory(NamedTuple):
    """Memory charged to a cgroup and its descendants, in bytes."""

    anon_bytes: int
    """inactive_anon + active_anon + unevictable: usage without page cache."""
    file_bytes: int
    """inactive_file + active_file: the page cache."""


class PressureLine(NamedTuple):
    """One line of a pressure file: stalled time in percent, total in microseconds."""

    avg10: float
    avg60: float
    avg300: float
    total_us: int


class Pressure(NamedTuple):
    """Pressure stall information; `full` is None if the kernel does not print that line."""

    some: PressureLine
    full: PressureLine | None


class MemInfo(NamedTuple):
    """Memory of the node by /proc/meminfo, in bytes."""

    total_bytes: int
    free_bytes: int
    available_bytes: int

    @property
    def used_bytes(self) -> int:
        """Usage without page cache: MemTotal - MemAvailable."""
        return self.total_bytes - self.available_bytes

    @property
    def used_with_page_cache_bytes(self) -> int:
        """MemTotal - MemFree."""
        return self.total_bytes - self.free_bytes


class Traffic(NamedTuple):
    """Bytes since boot: received and sent, or read and written."""

    in_bytes: int
    out_bytes: int


def integer(word: bytes, path: str) -> int:
    """A non-negative decimal integer as the kernel prints it, at most 20 digits."""
    word = word.strip()
    if not word.isdigit() or len(word) > 20:
        raise KernelFileError(f"not a number: {_excerpt(word)}", path=path)
    return int(word)


def field(data: bytes, key: bytes, path: str) -> int:
    """The integer after `key` in a file of `key value` lines; further words are ignored."""
    if data.startswith(key + b" "):
        start = len(key) + 1
    else:
        start = data.find(b"\n" + key + b" ") + len(key) + 2
        if start < len(key) + 2:  # not found
            raise KernelFileError(f"no field {key.decode()}", path=path)
    end = data.find(b"\n", start)
    word = data[start : end if end >= 0 else len(data)]
    if not word.isdigit():  # rare: padding or further words
        word = (word.split() or [b""])[0]
    return integer(word, path)


def throttling_v1(data: bytes, path: str = "cpu.stat") -> Throttling:
    """cpu.stat of cgroup v1."""
    return Throttling(
        field(data, b"nr_periods", path),
        field(data, b"nr_throttled", path),
        field(data, b"throttled_time", path),
    )


def throttling_v2(data: bytes, path: str = "cpu.stat") -> Throttling:
    """Bandwidth fields of cpu.stat of cgroup v2; only the cpu controller adds them."""
    return Throttling(
        field(data, b"nr_periods", path),
        field(data, b"nr_throttled", path),
        field(data, b"throttled_usec", path) * 1000,
    )


def usage_ns_v2(data: bytes, path: str = "cpu.stat") -> int:
    """CPU time of a v2 cgroup in nanoseconds (the kernel prints microseconds)."""
    return field(data, b"usage_usec", path) * 1000


def memory_stat_v1(data: bytes, path: str = "memory.stat") -> CgroupMemory:
    """memory.stat of cgroup v1; the `total_` fields include descendants."""
    if (memory := _memory_in_order(_MEMORY_V1, data, b"total_inactive_anon")) is not None:
        return memory
    return CgroupMemory(
        field(data, b"total_inactive_anon", path)
        + field(data, b"total_active_anon", path)
        + field(data, b"total_unevictable", path),
        field(data, b"total_inactive_file", path) + field(data, b"total_active_file", path),
    )


def memory_stat_v2(data: bytes, path: str = "memory.stat") -> CgroupMemory:
    """memory.stat of cgroup v2; all fields include descendants."""
    if (memory := _memory_in_order(_MEMORY_V2, data, b"\ninactive_anon")) is not None:
        return memory
    return CgroupMemory(
        field(data, b"inactive_anon", path)
        + field(data, b"active_anon", path)
        + field(data, b"unevictable", path),
        field(data, b"inactive_file", path) + field(data, b"active_file", path),
    )


def _memory_in_order(pattern: re.Pattern[bytes], data: bytes, first: bytes) -> CgroupMemory | None:
    """The memory of a memory.stat whose five fields follow each other; None if they do not."""
    match = pattern.match(data, max(data.find(first), 0))
    if match is None:
        return None
    inactive_anon, active_anon, inactive_file, active_file, unevictable = map(int, match.groups())
    return CgroupMemory(inactive_anon + active_anon + unevictable, inactive_file + active_file)


def pressure(data: bytes, path: str = "pressure") -> Pressure:
    """A pressure file of a cgroup or of /proc/pressure."""
    lines: dict[bytes, PressureLine] = {}
    for line in data.splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] not in (b"some", b"full") or words[0] in lines or len(words) < 5:
            raise KernelFileError(f"not a pressure line: {_excerpt(line)}", path=path)
        lines[words[0]] = PressureLine(
            _percent(words[1], b"avg10=", path),
            _percent(words[2], b"avg60=", path),
            _percent(words[3], b"avg300=", path),
            integer(_without_prefix(words[4], b"total=", path), path),
        )
    if b"some" not in lines:
        raise KernelFileError("no `some` line", path=path)
    return Pressure(lines[b"some"], lines.get(b"full"))


def cpu_list(data: bytes, path: str = "cpuset.cpus") -> tuple[int, ...]:
    """CPU numbers of a list such as `0-3,7`, ascending and distinct; it may be empty."""
    cpus: set[int] = set()
    text = data.strip()
    for part in text.split(b",") if text else ():
        bounds = part.split(b"-")
        if len(bounds) > 2:
            raise KernelFileError(f"not a range: {_excerpt(part)}", path=path)
        first, last = integer(bounds[0], path), integer(bounds[-1], path)
        if first > last or last >= CPUS_MAX:
            raise KernelFileError(f"not a range: {_excerpt(part)}", path=path)
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def node_ticks(data: bytes, path: str = "/proc/stat") -> int:
    """Busy CPU time of the node in clock ticks since boot: user (which includes guest), nice,
    system, irq and softirq of the first line of /proc/stat."""
    line = data[: data.find(b"\n")] if b"\n" in data else data
    if not line.startswith(b"cpu "):
        raise KernelFileError("the first line is not cpu", path=path)
    words = line.split()[1:9]
    if len(words) < 8:  # steal came with Linux 2.6.11
        raise KernelFileError(f"expected 8 fields: {_excerpt(line)}", path=path)
    user, nice, system, _idle, _iowait, irq, softirq, _steal = (integer(w, path) for w in words)
    return user + nice + system + irq + softirq


def meminfo(data: bytes, path: str = "/proc/meminfo") -> MemInfo:
    """MemTotal, MemFree and MemAvailable; the kernel prints kB."""
    return MemInfo(
        field(data, b"MemTotal:", path) * 1024,
        field(data, b"MemFree:", path) * 1024,
        field(data, b"MemAvailable:", path) * 1024,
    )


def net_dev(data: bytes, path: str = "/proc/net/dev") -> dict[str, Traffic]:
    """Bytes received and sent per interface."""
    interfaces: dict[str, Traffic] = {}
    lines = data.splitlines()
    if len(lines) < 2:
        raise KernelFileError("no header", path=path)
    for line in lines[2:]:
        name, colon, numbers = line.rpartition(b":")
        words = numbers.split()
        if not colon or len(words) < 9:
            raise KernelFileError(f"not an interface: {_excerpt(line)}", path=path)
        interfaces[name.strip().decode("utf-8", "replace")] = Traffic(
            integer(words[0], path), integer(words[8], path)
        )
    return interfaces


def diskstats(data: bytes, path: str = "/proc/diskstats") -> dict[str, Traffic]:
    """Bytes read and written per block device, partitions included (sectors of 512 bytes)."""
    devices: dict[str, Traffic] = {}
    for line in data.splitlines():
        words = line.split()
        if len(words) < 10:
            raise KernelFileError(f"not a block device: {_excerpt(line)}", path=path)
        devices[words[2].decode("utf-8", "replace")] = Traffic(
            integer(words[5], path) * 512, integer(words[9], path) * 512
        )
    return devices


def cold_bytes(data: bytes, path: str = "memory.idle_page_stats") -> int:
    """Cold page cache of a kidled kernel: buckets 6 to 8 of rows cfei, dfei, cfui and dfui.

    Each of these rows must occur once, with eight ages; comments and other rows are ignored.
    """
    rows: dict[bytes, list[bytes]] = {}
    for line in data.splitlines():
        words = line.split()
        if words and words[0] in (b"cfei", b"dfei", b"cfui", b"dfui"):
            if words[0] in rows or len(words) != 9:
                raise KernelFileError(f"expected 8 ages once: {_excerpt(line)}", path=path)
            rows[words[0]] = words[1:]
    if len(rows) != 4:
        raise KernelFileError("rows cfei, dfei, cfui and dfui are not complete", path=path)
    return sum(integer(word, path) for words in rows.values() for word in words[5:])


def _without_prefix(word: bytes, prefix: bytes, path: str) -> bytes:
    if not word.startswith(prefix):
        raise KernelFileError(f"expected {prefix.decode()}: {_excerpt(word)}", path=path)
    return word[len(prefix) :]


def _percent(word: bytes, prefix: bytes, path: str) -> float:
    number = _without_prefix(word, prefix, path)
    whole, _, fraction = number.partition(b".")
    if not whole.isdigit() or not (fraction or b"0").isdigit() or len(number) > 20:
        raise KernelFileError(f"not a percentage: {_excerpt(word)}", path=path)
    return float(number)


def _excerpt(data: bytes) -> str:
    return repr(data[:60].decode("utf-8", "replace"))
