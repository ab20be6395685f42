"""Text of the kernel into numbers: pure, strict, and cheap enough to run for every pod each second.

Each function takes the bytes of one file, and its path for the message, and returns integers in the
unit of the result's name. A field that is needed and missing, a word that is no number, a number of
more digits than the kernel can print: `KernelFileError`. Fields nobody asked for are not looked at.
"""

from typing import Final, NamedTuple

from pipeline.errors import KernelFileError

CPUS_MAX: Final = 1 << 16  # far above CONFIG_NR_CPUS; bounds what "0-4294967295" may allocate


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
