"""Groups of the node exporter's kernel package: files, paths and formulas of usage."""

import asyncio
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec

from actuators.node.knob_files import KNOB_FILES
from node_exporter.collection import NODE, Collection, Usage
from node_exporter.counter_deltas import growth
from node_exporter.kernel import cgroup_paths as paths
from node_exporter.kernel import formulas, parse_files
from node_exporter.kernel.node_files import ticks_per_second
from node_exporter.kernel.parse_files import PressureLine, Throttling
from node_exporter.sampler import Sampler
from node_exporter.window_aggregation import OpenWindow
from pipeline.clock import ManualClock
from pipeline.errors import KernelError
from pipeline.processors.node_qos.be_cpu_satisfaction import real_limit_millicores
from pipeline.processors.node_qos.cgroup_values import PERIOD_US, UNLIMITED, Knob, cpu_list_text
from pipeline.processors.node_qos.eviction_tasks import best_effort_cpu
from pipeline.processors.node_qos.node_state import NodeState, PodState
from tests.node_exporter.fake_node import FakeNode
from tests.vectors.cases import Case
from tests.vectors.runner import Difference, NotBuiltError, group

_NUMA = "no exporter measures NUMA nodes"


_PARSE = "node_exporter.kernel.parse_files"


def _throttling(counters: Throttling) -> Case:
    return {
        "nr_periods": counters.periods,
        "nr_throttled": counters.throttled_periods,
        "throttled_ns": counters.throttled_ns,
    }


def _pressure(data: bytes) -> Case:
    pressure = parse_files.pressure(data)
    full = pressure.full or PressureLine(0.0, 0.0, 0.0, 0)
    return {
        "some": pressure.some._asdict(),
        "full": full._asdict(),
        "full_supported": pressure.full is not None,
    }


def _memory(memory: parse_files.CgroupMemory) -> Case:
    return {
        "used_bytes": memory.anon_bytes,
        "used_with_page_cache_bytes": memory.anon_bytes + memory.file_bytes,
    }


def _cpuset(data: bytes) -> Case:
    cpus = parse_files.cpu_list(data)
    return {"cpus": list(cpus), "canonical": cpu_list_text(frozenset(cpus))}


def _limit(version: Literal[1, 2], knob: Knob, key: str) -> Callable[[bytes], Case]:
    """Read one file as the node actuator does; unlimited is -1."""
    (file,) = KNOB_FILES[version][knob]

    def read(data: bytes) -> Case:
        value = file.value(file.text([data], ""))
        return {key: -1 if value == UNLIMITED else value}

    return read


def _meminfo(data: bytes) -> Case:
    memory = parse_files.meminfo(data)
    return {
        "used_bytes": memory.used_bytes,
        "used_with_page_cache_bytes": memory.used_with_page_cache_bytes,
    }


FILES: dict[str, Callable[[bytes], Case] | str] = {
    "v1 cpu.stat": lambda data: _throttling(parse_files.throttling_v1(data)),
    "v2 cpu.stat": lambda data: (
        _throttling(parse_files.throttling_v2(data)) | {"usage_ns": parse_files.usage_ns_v2(data)}
    ),
    "v1 cpuacct.usage": lambda data: {"usage_ns": parse_files.integer(data, "cpuacct.usage")},
    "v1 memory.stat": lambda data: _memory(parse_files.memory_stat_v1(data)),
    "v2 memory.stat": lambda data: _memory(parse_files.memory_stat_v2(data)),
    "v2 cpu.max": _limit(2, Knob.CPU_QUOTA, "quota_us"),
    "pressure": _pressure,
    "v1 memory.limit_in_bytes": _limit(1, Knob.MEMORY_LIMIT, "limit_bytes"),
    "v2 memory.max": _limit(2, Knob.MEMORY_LIMIT, "limit_bytes"),
    "cpuset": _cpuset,
    "v1 memory.numa_stat": _NUMA,
    "v2 memory.numa_stat": _NUMA,
    "/proc/stat": lambda data: {"busy_ticks": {"cpu": parse_files.node_ticks(data)}},
    "/proc/meminfo": _meminfo,
    "numa meminfo": _NUMA,
}
"""What is read of each file, or why it is not read yet."""


def _only_what_is_used(given: Case, expected: Case) -> Difference | None:
    """The exporter reads from a file what it publishes, and no more."""
    if expected.get("error") or isinstance(FILES[given["file"]], str):
        return None
    answer = {key: value for key, value in expected.items() if key in _READ}
    if "busy_ticks" in answer:
        answer["busy_ticks"] = {"cpu": answer["busy_ticks"]["cpu"]}
    if answer == expected:
        return None
    return Difference(
        "the exporter reads the fields that it publishes: no raw memory fields, no ticks of single "
        "CPUs",
        "none",
        answer,
    )


@group(f"{_PARSE}, actuators.node.knob_files", differs=_only_what_is_used)
def cgroup_file_parsing(case: Case) -> object:
    read, text = FILES[case["file"]], case["text"]
    if isinstance(read, str):
        raise NotBuiltError(read)
    return read(text.encode())


_READ = frozenset(
    {
        "used_bytes", "used_with_page_cache_bytes", "nr_periods", "nr_throttled", "throttled_ns",
        "usage_ns", "some", "full", "full_supported", "cpus", "canonical", "busy_ticks",
        "quota_us", "limit_bytes",
    }
)  # fmt: skip


@group("node_exporter.kernel.cgroup_paths")
def cgroup_paths(case: Case) -> object:
    """Directories of pods and host applications, and the QoS class of a path."""
    driver = paths.Driver(case["driver"]) if case["driver"] else paths.Driver.CGROUPFS
    match case["function"]:
        case "pod_dir":
            kube_qos = paths.KubeQOS(case["kube_qos"])
            return {"path": paths.pod_dir(driver, kube_qos, case["uid"])}
        case "host_app_dir":
            path = paths.host_app_dir(
                driver, case["name"], case["qos"], base=case["base"], parent_dir=case["parent_dir"],
                relative_path=case["relative_path"],
            )  # fmt: skip
            return {"path": path}
        case "kube_qos_of_path":
            return {"kube_qos": paths.kube_qos_of_path(case["path"]).value}
        case "container_dir":
            runtime, _, id = case["container_id"].partition("://")
            try:
                return {"dir": paths.container_dir(driver, runtime, id)}
            except KernelError:
                return {"dir": None}
    raise LookupError(case["function"])


def _sampled(
    id: str, write: Callable[[FakeNode, int], None], counters: tuple[int, int], elapsed: float
) -> float | None:
    """Cores of an entity whose counter is read twice, `elapsed` seconds apart."""

    async def read(node: FakeNode) -> float | None:
        clock = ManualClock()
        settings = msgspec.structs.replace(node.settings(), collect_interval_seconds=elapsed)
        sampler, cores = Sampler(settings, clock), None
        for counter in counters:
            node.pod("a", 0)
            write(node, counter)
            await clock.advance(elapsed)
            usages = sampler.collect(round(clock.now() * 1000)).usages
            (cores,) = (usage.cpu_cores for usage in usages if usage.entity.id == id)
        return cores

    with TemporaryDirectory() as folder:
        return asyncio.run(read(FakeNode(Path(folder))))


def _throttled(grown: Throttling | None) -> float:
    """The throttled ratio of a window in which counters grew by so much."""
    window = OpenWindow(1000, 1000, 1000)
    usage = Usage(NODE, None, None, None, None, None, throttling=grown)
    window.add(Collection(1000, (usage,), None))
    ratio: float = window.rows(None, None)[0]["cpu_throttled_ratio"]
    return ratio


@group(
    f"Sampler, window_aggregation.OpenWindow, kernel.formulas, {_PARSE}, best_effort_cpu, "
    "real_limit_millicores"
)
def usage_formulas(case: Case) -> object:
    """Cores through the sampler on a fake node, throttling through a window, the rest as these
    calculate it."""
    match case["function"]:
        case "cpu_cores_from_ns":
            elapsed = (case["ts_ns"] - case["prev_ts_ns"]) / 1e9
            counters = (case["prev_usage_ns"], case["usage_ns"])
            return {"cores": _sampled("a", lambda node, ns: node.pod("a", ns), counters, elapsed)}
        case "node_cpu_cores_from_ticks":
            if case["tick_ms"] * ticks_per_second() != 1000:
                raise NotBuiltError(f"this kernel has no ticks of {case['tick_ms']} ms")
            counters = (case["prev_ticks"], case["ticks"])
            return {"cores": _sampled("", FakeNode.node, counters, case["elapsed_s"])}
        case "throttled_ratio":
            now = Throttling(case["nr_periods"], case["nr_throttled"], 0)
            before = Throttling(case["prev_nr_periods"], case["prev_nr_throttled"], 0)
            return {"ratio": _throttled(growth(now, before))}
        case "be_usage_milli":
            elapsed, counters = case["elapsed_ms"] / 1000, (case["prev_usage_ns"], case["usage_ns"])
            cores = _sampled("a", lambda node, ns: node.pod("a", ns), counters, elapsed)
            pod = PodState(uid="a", path="", kube_qos="BestEffort", cpu_cores=cores)
            state = NodeState(node="n", at=0.0, best_effort_limit_millicores=1, pods=(pod,))
            cpu = best_effort_cpu(state, "evictByRealLimit")
            return {"milli": None if cpu is None else cpu.usage_millicores}
        case "be_real_limit_milli":
            cpus = frozenset(parse_files.cpu_list(case["cpuset"].encode()))
            quota, period = case["quota_us"], case["period_us"]
            quota = UNLIMITED if quota < 0 else quota * PERIOD_US // period
            return {"milli": real_limit_millicores([cpus], quota)}
        case "system_usage":
            system = formulas.system_usage(case["node"], case["pods"], case["host_apps"])
            return {"system": system}
        case "percentile":
            p = Fraction(str(case["p"]))
            return {"value": formulas.rank_percentile(sorted(case["values"]), p)}
        case "average":
            return {"value": formulas.average(case["values"])}
        case "page_hot":
            hot = formulas.hot_bytes(case["usage_with_page_cache"], case["cold_bytes"])
            return {"hot_bytes": hot}
        case "cold_bytes":
            rows = case["rows"].items()
            text = "".join(f"  {name} {' '.join(map(str, ages))}\n" for name, ages in rows)
            return {"cold_bytes": parse_files.cold_bytes(text.encode())}
    raise LookupError(case["function"])
