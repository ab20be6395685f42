"""Parsers of kernel files parse real files and refuse anything else with one error class."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_exporter.kernel import parse_files
from pipeline.errors import KernelFileError

PRESSURE = b"some avg10=0.10 avg60=1.50 avg300=99.99 total=17\n"

PARSERS: list[Callable[[bytes], object]] = [
    lambda data: parse_files.integer(data, "cpuacct.usage"), parse_files.throttling_v1,
    parse_files.throttling_v2, parse_files.usage_ns_v2, parse_files.memory_stat_v1,
    parse_files.memory_stat_v2, parse_files.pressure, parse_files.cpu_list, parse_files.node_ticks,
    parse_files.meminfo, parse_files.net_dev, parse_files.diskstats, parse_files.cold_bytes,
]  # fmt: skip

WORDS = st.sampled_from(
    [
        *(b"nr_periods nr_throttled throttled_time throttled_usec usage_usec total=0 N0=1 N1=2 -1"),
        *b"usage_usec inactive_anon active_anon unevictable some full avg10=0.00 avg60=1".split(),
        *b"total_inactive_anon total_active_anon total_unevictable total_active_file max".split(),
        *b"avg300=2.5 total=17 cpu cpu0 MemTotal: MemFree: MemAvailable: kB Node 0 eth0:".split(),
        *b"cfei dfei cfui dfui anon file 0-3 1-2-3 1_000 99999999999999999999999 nan".split(),
        b"0",
        b"1",
        b"\xff",
        b"\xb2",  # a digit for str.isdigit only
        b"9" * 5000,  # more digits than int() converts
        b"",
    ]
).map(lambda word: bytes([word]) if isinstance(word, int) else word)
ALMOST_VALID = st.lists(
    st.tuples(WORDS, st.sampled_from([b" ", b"\n", b"  ", b"\t", b"\0", b"\r\n", b",", b"="])),
    max_size=60,
).map(lambda pairs: b"".join(word + gap for word, gap in pairs))


@pytest.mark.parametrize("parser", PARSERS)
@given(data=st.one_of(st.binary(max_size=300), st.text(max_size=200).map(str.encode), ALMOST_VALID))
def test_any_bytes_parse_or_raise_kernel_file_error(
    parser: Callable[[bytes], object], data: bytes
) -> None:
    with suppress(KernelFileError):
        assert parser(data) is not None


@pytest.mark.parametrize("parser", PARSERS)
def test_empty_file_is_refused_unless_it_is_valid(parser: Callable[[bytes], object]) -> None:
    if parser in (parse_files.cpu_list, parse_files.diskstats):  # no CPUs and no disks are values
        assert not parser(b"")
    else:
        with pytest.raises(KernelFileError):
            parser(b"")


@given(
    counters=st.lists(st.integers(0, 2**63 - 1), min_size=5, max_size=5),
    # The order of kernels, and any other.
    order=st.just([0, 1, 3, 4, 2]) | st.permutations(range(5)),
)
def test_memory_fields_are_parsed_in_any_order(counters: list[int], order: list[int]) -> None:
    names = ["inactive_anon", "active_anon", "unevictable", "inactive_file", "active_file"]
    lines = [f"{names[i]} {counters[i]}" for i in order]
    v1 = "\n".join([f"{names[i]} 7" for i in order] + [f"total_{line}" for line in lines])
    v2 = "\n".join(["anon 7", "file 7", *lines, "workingset_activate_anon 9"])
    expected = (sum(counters[:3]), sum(counters[3:]))
    assert parse_files.memory_stat_v1(v1.encode()) == expected
    assert parse_files.memory_stat_v2(v2.encode()) == expected


@given(cpus=st.sets(st.integers(0, 500)).map(lambda cpu_numbers: tuple(sorted(cpu_numbers))))
def test_cpu_list_survives_a_round_trip(cpus: tuple[int, ...]) -> None:
    assert parse_files.cpu_list(",".join(map(str, cpus)).encode()) == cpus


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        *((parse_files.cpu_list, text) for text in (
            b"0-4294967295", b"3-1", b"1,,2", b"1-", b"-1", b"0x1", b"1_0",
        )),
        *((parse_files.pressure, text) for text in (
            PRESSURE + PRESSURE, b"some avg10=nan avg60=0.00 avg300=0.00 total=1\n",
            b"some avg10=-1.0 avg60=0.00 avg300=0.00 total=1\n",
            b"some avg10=0.00 avg60=0.00 avg300=0.00\n",
            b"most avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
            b"full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
        )),
    ],
)  # fmt: skip
def test_invalid_cpu_list_or_pressure_file_is_refused(
    parser: Callable[[bytes], object], text: bytes
) -> None:
    with pytest.raises(KernelFileError):
        parser(text)


def test_pressure_without_a_full_line_is_parsed() -> None:
    assert parse_files.pressure(PRESSURE) == ((0.1, 1.5, 99.99, 17), None)


def test_traffic_is_parsed_per_device() -> None:
    header = b"Inter-| Receive | Transmit\n face |bytes\n"
    assert parse_files.net_dev(header + b"  eth0: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n") == {
        "eth0": (10, 20)
    }
    # A number may follow the colon directly, and a name may contain a colon (an alias).
    assert parse_files.net_dev(header + b"eth0:1:10 1 0 0 0 0 0 0 20\n") == {"eth0:1": (10, 20)}
    disk = b" 254 0 vda 27261 5193 3 19764 7665 29734 4 14549 0 12240 34568\n"
    assert parse_files.diskstats(disk) == {"vda": (1536, 2048)}


def test_cold_memory_ignores_comments_and_other_rows() -> None:
    text = b"# version: 1.0\n# buckets: 1,2,5,15,30,60,120,240\n"
    for row in (b"csei", b"dsei", b"cfei", b"dfei", b"csui", b"dsui", b"cfui", b"dfui"):
        text += b"  " + row + b" 1 2 3 4 5 6 7 8\n"
    assert parse_files.cold_bytes(text) == 4 * (6 + 7 + 8)
    with pytest.raises(KernelFileError):
        parse_files.cold_bytes(text.replace(b"dfui", b"dfua"))
    with pytest.raises(KernelFileError):
        parse_files.cold_bytes(text.replace(b"7 8\n", b"7\n"))


@pytest.mark.parametrize(
    ("path", "parser"),
    [
        ("/proc/stat", parse_files.node_ticks),
        ("/proc/meminfo", parse_files.meminfo),
        ("/proc/net/dev", parse_files.net_dev),
        ("/proc/diskstats", parse_files.diskstats),
        ("/proc/pressure/memory", parse_files.pressure),
        ("/sys/devices/system/cpu/online", parse_files.cpu_list),
        ("/sys/fs/cgroup/memory/memory.stat", parse_files.memory_stat_v1),
        ("/sys/fs/cgroup/cpu/cpu.stat", parse_files.throttling_v1),
        ("/sys/fs/cgroup/unified/cpu.stat", parse_files.usage_ns_v2),
    ],
)
def test_files_of_this_machine_are_parsed(path: str, parser: Callable[[bytes], object]) -> None:
    assert parser(Path(path).read_bytes())
