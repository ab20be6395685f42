"""Text of the kernel into numbers: pure, strict, and cheap enough to run for every pod each second.

Each function takes the bytes of one file, and its path for the message, and returns integers in the
unit of the result's name. A field that is needed and missing, a word that is no number, a number of
more digits than the kernel can print: `KernelFileError`. Fields nobody asked for are not looked at.
"""

from typing import Final, NamedTuple

from pipeline.errors import KernelFileError

UNLIMITED_V1: Final = 9223372036854771712
"""What v1 prints for no memory limit: the largest multiple of 4096 in 63 bits."""

PAGE_BYTES: Final = 4096
CPUS_MAX: Final = 1 << 16  # far above CONFIG_NR_CPUS; bounds what "0-4294967295" may allocate
NODES_MAX: Final = 1 << 12


class Throttling(NamedTuple):
    """CFS bandwidth counters since the cgroup was made."""

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
    """One line of a pressure file: shares of time stalled in percent, total in microseconds."""

    avg10: float
    avg60: float
    avg300: float
    total_us: int


class Pressure(NamedTuple):
    """Pressure stall information; `full` is None where the kernel prints no such line."""

    some: PressureLine
    full: PressureLine | None


class CpuTicks(NamedTuple):
    """One line of /proc/stat, in clock ticks since boot."""

    busy: int
    """user + nice + system + irq + softirq."""
    total: int
    """busy + idle + iowait + steal (guest time is part of user)."""


class MemInfo(NamedTuple):
    """What /proc/meminfo says of the node, in bytes."""

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
    """Bytes in and out since boot: received and sent, or read and written."""

    in_bytes: int
    out_bytes: int


def integer(word: bytes, path: str) -> int:
    """A non-negative decimal integer as the kernel prints it, at most 20 digits."""
    word = word.strip()
    if not word.isdigit() or len(word) > 20:
        raise KernelFileError(f"not a number: {_shown(word)}", path=path)
    return int(word)


def field(data: bytes, key: bytes, path: str) -> int:
    """The integer after `key` in a file of `key value` lines; words after the value are ignored."""
    if data.startswith(key + b" "):
        start = len(key) + 1
    else:
        start = data.find(b"\n" + key + b" ") + len(key) + 2
        if start < len(key) + 2:
            raise KernelFileError(f"no field {key.decode()}", path=path)
    end = data.find(b"\n", start)
    word = data[start : end if end >= 0 else len(data)]
    if not word.isdigit():  # seldom: padding or further words
        word = (word.split() or [b""])[0]
    return integer(word, path)


def single(data: bytes, path: str) -> int:
    """A file of one non-negative integer (cpuacct.usage, memory.usage_in_bytes, cpu.shares)."""
    return integer(data, path)


def throttling_v1(data: bytes, path: str = "cpu.stat") -> Throttling:
    """cpu.stat of cgroup v1."""
    return Throttling(
        field(data, b"nr_periods", path),
        field(data, b"nr_throttled", path),
        field(data, b"throttled_time", path),
    )


def throttling_v2(data: bytes, path: str = "cpu.stat") -> Throttling:
    """The bandwidth part of cpu.stat of cgroup v2, which only the cpu controller adds."""
    return Throttling(
        field(data, b"nr_periods", path),
        field(data, b"nr_throttled", path),
        field(data, b"throttled_usec", path) * 1000,
    )


def usage_ns_v2(data: bytes, path: str = "cpu.stat") -> int:
    """CPU time of a v2 cgroup in nanoseconds (the kernel prints microseconds)."""
    return field(data, b"usage_usec", path) * 1000


def memory_stat_v1(data: bytes, path: str = "memory.stat") -> CgroupMemory:
    """memory.stat of cgroup v1: the `total_` fields, which include descendants."""
    return CgroupMemory(
        field(data, b"total_inactive_anon", path)
        + field(data, b"total_active_anon", path)
        + field(data, b"total_unevictable", path),
        field(data, b"total_inactive_file", path) + field(data, b"total_active_file", path),
    )


def memory_stat_v2(data: bytes, path: str = "memory.stat") -> CgroupMemory:
    """memory.stat of cgroup v2, which is hierarchical by itself."""
    return CgroupMemory(
        field(data, b"inactive_anon", path)
        + field(data, b"active_anon", path)
        + field(data, b"unevictable", path),
        field(data, b"inactive_file", path) + field(data, b"active_file", path),
    )


def memory_limit_v1(data: bytes, path: str = "memory.limit_in_bytes") -> int:
    """Limit in bytes, -1 for none."""
    limit = single(data, path)
    return -1 if limit >= UNLIMITED_V1 else limit


def memory_limit_v2(data: bytes, path: str = "memory.max") -> int:
    """Limit in bytes, -1 for `max`."""
    return -1 if data.strip() == b"max" else single(data, path)


def cpu_max_v2(data: bytes, path: str = "cpu.max") -> tuple[int, int]:
    """(quota, period) in microseconds of `quota period`; quota -1 for `max`."""
    words = data.split()
    if len(words) != 2:
        raise KernelFileError(f"expected `quota period`: {_shown(data)}", path=path)
    quota = -1 if words[0] == b"max" else integer(words[0], path)
    return quota, integer(words[1], path)


def pressure(data: bytes, path: str = "pressure") -> Pressure:
    """A pressure file, of a cgroup or under /proc/pressure."""
    lines: dict[bytes, PressureLine] = {}
    for line in data.splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] not in (b"some", b"full") or words[0] in lines or len(words) < 5:
            raise KernelFileError(f"not a pressure line: {_shown(line)}", path=path)
        lines[words[0]] = PressureLine(
            _percent(words[1], b"avg10=", path),
            _percent(words[2], b"avg60=", path),
            _percent(words[3], b"avg300=", path),
            integer(_after(words[4], b"total=", path), path),
        )
    if b"some" not in lines:
        raise KernelFileError("no `some` line", path=path)
    return Pressure(lines[b"some"], lines.get(b"full"))


def cpu_list(data: bytes, path: str = "cpuset.cpus") -> tuple[int, ...]:
    """CPU numbers of a list such as `0-3,7`, ascending and without repetition; empty is empty."""
    cpus: set[int] = set()
    text = data.strip()
    for part in text.split(b",") if text else ():
        bounds = part.split(b"-")
        if len(bounds) > 2:
            raise KernelFileError(f"not a range: {_shown(part)}", path=path)
        first, last = integer(bounds[0], path), integer(bounds[-1], path)
        if first > last or last >= CPUS_MAX:
            raise KernelFileError(f"not a range: {_shown(part)}", path=path)
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def format_cpu_list(cpus: tuple[int, ...]) -> str:
    """The shortest list of ascending CPU numbers, as the kernel prints it: `0-3,7`."""
    ranges: list[list[int]] = []
    for cpu in cpus:
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def numa_pages_v1(data: bytes, path: str = "memory.numa_stat") -> tuple[int, ...]:
    """Pages per NUMA node with descendants, of v1: `hierarchical_total=`, else the `total=` line.

    The first line must be `total=`: another one is another format.
    """
    lines = data.splitlines()
    if not lines or not lines[0].startswith(b"total="):
        raise KernelFileError("the first line is not total=", path=path)
    totals = [line for line in lines if line.startswith(b"hierarchical_total=")]
    return _per_node((totals or lines)[0], path)


def numa_pages_v2(data: bytes, path: str = "memory.numa_stat") -> tuple[int, ...]:
    """Pages per NUMA node of v2: anon and file bytes, each in whole pages, summed."""
    rows = {line.split(None, 1)[0]: line for line in data.splitlines() if line.strip()}
    if missing := [key.decode() for key in (b"anon", b"file") if key not in rows]:
        raise KernelFileError(f"no field {missing[0]}", path=path)
    anon, file = _per_node(rows[b"anon"], path), _per_node(rows[b"file"], path)
    if len(anon) != len(file):
        raise KernelFileError("anon and file have different nodes", path=path)
    return tuple(a // PAGE_BYTES + f // PAGE_BYTES for a, f in zip(anon, file, strict=True))


def node_ticks(data: bytes, path: str = "/proc/stat") -> CpuTicks:
    """Ticks of the node alone: the first line of /proc/stat."""
    line = data[: data.find(b"\n")] if b"\n" in data else data
    if not line.startswith(b"cpu "):
        raise KernelFileError("the first line is not cpu", path=path)
    return _ticks(line, path)


def meminfo(data: bytes, path: str = "/proc/meminfo") -> MemInfo:
    """MemTotal, MemFree and MemAvailable (printed in kB)."""
    return MemInfo(
        field(data, b"MemTotal:", path) * 1024,
        field(data, b"MemFree:", path) * 1024,
        field(data, b"MemAvailable:", path) * 1024,
    )


def numa_used_bytes(data: bytes, path: str = "node meminfo") -> int:
    """Usage without page cache of one NUMA node, never below 0.

    MemTotal - (MemFree + Active(file) + Inactive(file) + SReclaimable), of
    /sys/devices/system/node/nodeN/meminfo, whose lines begin with `Node N`.
    """
    rows: dict[bytes, bytes] = {}
    for line in data.splitlines():
        words = line.split()
        if len(words) >= 4 and words[0] == b"Node":
            rows[words[2]] = words[3]

    def kib(key: bytes) -> int:
        if key not in rows:
            raise KernelFileError(f"no field {key.decode()}", path=path)
        return integer(rows[key], path)

    unused = kib(b"MemFree:") + kib(b"Active(file):") + kib(b"Inactive(file):")
    return max(0, kib(b"MemTotal:") - unused - kib(b"SReclaimable:")) * 1024


def net_dev(data: bytes, path: str = "/proc/net/dev") -> dict[str, Traffic]:
    """Bytes received and sent per interface."""
    found: dict[str, Traffic] = {}
    lines = data.splitlines()
    if len(lines) < 2:
        raise KernelFileError("no header", path=path)
    for line in lines[2:]:
        name, colon, numbers = line.rpartition(b":")
        words = numbers.split()
        if not colon or len(words) < 9:
            raise KernelFileError(f"not an interface: {_shown(line)}", path=path)
        found[name.strip().decode("utf-8", "replace")] = Traffic(
            integer(words[0], path), integer(words[8], path)
        )
    return found


def diskstats(data: bytes, path: str = "/proc/diskstats") -> dict[str, Traffic]:
    """Bytes read and written per block device, partitions included (sectors of 512 bytes)."""
    found: dict[str, Traffic] = {}
    for line in data.splitlines():
        words = line.split()
        if len(words) < 10:
            raise KernelFileError(f"not a block device: {_shown(line)}", path=path)
        found[words[2].decode("utf-8", "replace")] = Traffic(
            integer(words[5], path) * 512, integer(words[9], path) * 512
        )
    return found


def cold_bytes(data: bytes, path: str = "memory.idle_page_stats") -> int:
    """Cold page cache of a kidled kernel: buckets 6 to 8 of rows cfei, dfei, cfui and dfui.

    Each row must be there once with its eight ages; comments and other rows are passed over.
    """
    rows: dict[bytes, list[bytes]] = {}
    for line in data.splitlines():
        words = line.split()
        if words and words[0] in (b"cfei", b"dfei", b"cfui", b"dfui"):
            if words[0] in rows or len(words) != 9:
                raise KernelFileError(f"expected 8 ages once: {_shown(line)}", path=path)
            rows[words[0]] = words[1:]
    if len(rows) != 4:
        raise KernelFileError("rows cfei, dfei, cfui and dfui are not all there", path=path)
    return sum(integer(word, path) for words in rows.values() for word in words[5:])


def _ticks(line: bytes, path: str) -> CpuTicks:
    words = line.split()[1:9]
    if len(words) < 8:  # steal came with Linux 2.6.11
        raise KernelFileError(f"expected 8 fields: {_shown(line)}", path=path)
    user, nice, system, idle, iowait, irq, softirq, steal = (integer(w, path) for w in words)
    busy = user + nice + system + irq + softirq
    return CpuTicks(busy, busy + idle + iowait + steal)


def _per_node(line: bytes, path: str) -> tuple[int, ...]:
    values: list[int] = []
    for word in line.split()[1:]:
        name, equals, value = word.partition(b"=")
        if not equals or name != b"N%d" % len(values) or len(values) >= NODES_MAX:
            raise KernelFileError(f"nodes are not N0, N1, ..: {_shown(line)}", path=path)
        values.append(integer(value, path))
    if not values:
        raise KernelFileError(f"no nodes: {_shown(line)}", path=path)
    return tuple(values)


def _after(word: bytes, prefix: bytes, path: str) -> bytes:
    if not word.startswith(prefix):
        raise KernelFileError(f"expected {prefix.decode()}: {_shown(word)}", path=path)
    return word[len(prefix) :]


def _percent(word: bytes, prefix: bytes, path: str) -> float:
    number = _after(word, prefix, path)
    whole, _, fraction = number.partition(b".")
    if not whole.isdigit() or not (fraction or b"0").isdigit() or len(number) > 20:
        raise KernelFileError(f"not a percentage: {_shown(word)}", path=path)
    return float(number)


def _shown(data: bytes) -> str:
    return repr(data[:60].decode("utf-8", "replace"))
