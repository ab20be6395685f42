"""Vector groups of the node exporter's kernel package: file parsing, paths and usage formulas.

`cgroup_file_parsing` passes through `kernel.parse` and `cgroup_paths` through `kernel.paths`, by
which the sampler reads a node. `usage_formulas`: cores through the `Sampler` itself, on a fake
node; throttling through `growth` and the exporter's `window.Window`; the others through those
of `kernel.formulas` by which sampler and window work them out, and, for the best-effort tier, by
which the node actuator will.
"""

import asyncio
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from node_exporter.collection import NODE, Collection, Usage
from node_exporter.counter_deltas import growth
from node_exporter.kernel import cgroup_paths as paths
from node_exporter.kernel import formulas, parse_files
from node_exporter.kernel.node_files import ticks_per_second
from node_exporter.kernel.parse_files import PressureLine, Throttling
from node_exporter.sampler import Sampler
from node_exporter.window_aggregation import Window
from pipeline.clock import ManualClock
from tests.node_exporter.fake_node import FakeNode

Case = dict[str, Any]


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
    return {"cpus": list(cpus), "canonical": parse_files.format_cpu_list(cpus)}


def _meminfo(data: bytes) -> Case:
    memory = parse_files.meminfo(data)
    return {
        "used_bytes": memory.used_bytes,
        "used_with_page_cache_bytes": memory.used_with_page_cache_bytes,
    }


FILES: dict[str, Callable[[bytes], Case]] = {
    "v1 cpu.stat": lambda data: _throttling(parse_files.throttling_v1(data)),
    "v2 cpu.stat": lambda data: (
        _throttling(parse_files.throttling_v2(data)) | {"usage_ns": parse_files.usage_ns_v2(data)}
    ),
    "v1 cpuacct.usage": lambda data: {"usage_ns": parse_files.single(data, "cpuacct.usage")},
    "v1 memory.stat": lambda data: _memory(parse_files.memory_stat_v1(data)),
    "v2 memory.stat": lambda data: _memory(parse_files.memory_stat_v2(data)),
    "v2 cpu.max": lambda data: {"quota_us": parse_files.cpu_max_v2(data)[0]},
    "pressure": _pressure,
    "v1 memory.limit_in_bytes": lambda data: {"limit_bytes": parse_files.memory_limit_v1(data)},
    "v2 memory.max": lambda data: {"limit_bytes": parse_files.memory_limit_v2(data)},
    "cpuset": _cpuset,
    "v1 memory.numa_stat": lambda data: {"pages_per_node": list(parse_files.numa_pages_v1(data))},
    "v2 memory.numa_stat": lambda data: {"pages_per_node": list(parse_files.numa_pages_v2(data))},
    "/proc/stat": lambda data: {"busy_ticks": {"cpu": parse_files.node_ticks(data).busy}},
    "/proc/meminfo": _meminfo,
    "numa meminfo": lambda data: {"used_bytes": parse_files.numa_used_bytes(data)},
}


def cgroup_file_parsing(case: Case) -> object:
    """The text of one kernel file through its parser."""
    return FILES[case["file"]](case["text"].encode())


def cgroup_paths(case: Case) -> object:
    """Directory names of pods, containers and host applications."""
    driver = paths.Driver(case["driver"]) if case["driver"] else paths.Driver.CGROUPFS
    match case["function"]:
        case "pod_dir":
            kube_qos = paths.KubeQOS(case["kube_qos"])
            return {"path": paths.pod_dir(driver, kube_qos, case["uid"])}
        case "container_dir":
            return {"dir": paths.container_dir(driver, case["container_id"])}
        case "host_app_dir":
            path = paths.host_app_dir(
                driver,
                case["name"],
                case["qos"],
                base=case["base"],
                parent_dir=case["parent_dir"],
                relative_path=case["relative_path"],
            )
            return {"path": path}
        case "kube_qos_of_path":
            return {"kube_qos": paths.kube_qos_of_path(case["path"]).value}
    raise LookupError(case["function"])


def _sampled(
    id: str, write: Callable[[FakeNode, int], None], counters: tuple[int, int], elapsed: float
) -> float | None:
    """Cores of an entity whose counter is read twice, so many seconds apart."""

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
    """What a window says of an entity whose counters grew by so much within it."""
    window = Window(1000, 1000, 1000)
    usage = Usage(NODE, None, None, None, None, None, throttling=grown)
    window.add(Collection(1000, (usage,), None))
    ratio: float = window.rows(None, None)[0]["cpu_throttled_ratio"]
    return ratio


def usage_formulas(case: Case) -> object:
    """Two readings, or a list of samples, through the usage formulas."""
    match case["function"]:
        case "cpu_cores_from_ns":
            elapsed = (case["ts_ns"] - case["prev_ts_ns"]) / 1e9
            counters = (case["prev_usage_ns"], case["usage_ns"])
            return {"cores": _sampled("a", lambda node, ns: node.pod("a", ns), counters, elapsed)}
        case "node_cpu_cores_from_ticks":
            if case["tick_ms"] * ticks_per_second() != 1000:
                raise LookupError(f"ticks of {case['tick_ms']} ms on this kernel")
            counters = (case["prev_ticks"], case["ticks"])
            return {"cores": _sampled("", FakeNode.node, counters, case["elapsed_s"])}
        case "throttled_ratio":
            now = Throttling(case["nr_periods"], case["nr_throttled"], 0)
            before = Throttling(case["prev_nr_periods"], case["prev_nr_throttled"], 0)
            return {"ratio": _throttled(growth(now, before))}
        case "be_usage_milli":
            milli = formulas.best_effort_usage_millicores(
                case["usage_ns"], case["prev_usage_ns"], case["elapsed_ms"]
            )
            return {"milli": milli}
        case "be_real_limit_milli":
            cpus = parse_files.cpu_list(case["cpuset"].encode())
            milli = formulas.best_effort_limit_millicores(cpus, case["quota_us"], case["period_us"])
            return {"milli": milli}
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


ADAPTERS: dict[str, Callable[[Case], object]] = {
    "cgroup_file_parsing": cgroup_file_parsing,
    "cgroup_paths": cgroup_paths,
    "usage_formulas": usage_formulas,
}
