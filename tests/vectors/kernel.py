"""Vector groups of the node exporter's kernel package: file parsing, paths and usage formulas.

`cgroup_file_parsing` passes through `kernel.parse`, `cgroup_paths` through `kernel.paths` and
`usage_formulas` through `kernel.formulas`, by which the sampler reads a node.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from node_exporter.kernel import formulas, parse, paths
from node_exporter.kernel.parse import PressureLine, Throttling

Case = dict[str, Any]


def _throttling(counters: Throttling) -> Case:
    return {
        "nr_periods": counters.periods,
        "nr_throttled": counters.throttled_periods,
        "throttled_ns": counters.throttled_ns,
    }


def _pressure(data: bytes) -> Case:
    pressure = parse.pressure(data)
    full = pressure.full or PressureLine(0.0, 0.0, 0.0, 0)
    return {
        "some": pressure.some._asdict(),
        "full": full._asdict(),
        "full_supported": pressure.full is not None,
    }


def _memory(memory: parse.CgroupMemory) -> Case:
    return {
        "used_bytes": memory.anon_bytes,
        "used_with_page_cache_bytes": memory.anon_bytes + memory.file_bytes,
    }


def _cpuset(data: bytes) -> Case:
    cpus = parse.cpu_list(data)
    return {"cpus": list(cpus), "canonical": parse.format_cpu_list(cpus)}


def _meminfo(data: bytes) -> Case:
    memory = parse.meminfo(data)
    return {
        "used_bytes": memory.used_bytes,
        "used_with_page_cache_bytes": memory.used_with_page_cache_bytes,
    }


FILES: dict[str, Callable[[bytes], Case]] = {
    "v1 cpu.stat": lambda data: _throttling(parse.throttling_v1(data)),
    "v2 cpu.stat": lambda data: (
        _throttling(parse.throttling_v2(data)) | {"usage_ns": parse.usage_ns_v2(data)}
    ),
    "v1 cpuacct.usage": lambda data: {"usage_ns": parse.single(data, "cpuacct.usage")},
    "v1 memory.stat": lambda data: _memory(parse.memory_stat_v1(data)),
    "v2 memory.stat": lambda data: _memory(parse.memory_stat_v2(data)),
    "v2 cpu.max": lambda data: {"quota_us": parse.cpu_max_v2(data)[0]},
    "pressure": _pressure,
    "v1 memory.limit_in_bytes": lambda data: {"limit_bytes": parse.memory_limit_v1(data)},
    "v2 memory.max": lambda data: {"limit_bytes": parse.memory_limit_v2(data)},
    "cpuset": _cpuset,
    "v1 memory.numa_stat": lambda data: {"pages_per_node": list(parse.numa_pages_v1(data))},
    "v2 memory.numa_stat": lambda data: {"pages_per_node": list(parse.numa_pages_v2(data))},
    "/proc/stat": lambda data: {
        "busy_ticks": {name: ticks.busy for name, ticks in parse.proc_stat(data).items()}
    },
    "/proc/meminfo": _meminfo,
    "numa meminfo": lambda data: {"used_bytes": parse.numa_used_bytes(data)},
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


def usage_formulas(case: Case) -> object:
    """Two readings, or a list of samples, through the usage formulas."""
    match case["function"]:
        case "cpu_cores_from_ns":
            elapsed = case["ts_ns"] - case["prev_ts_ns"]
            return {"cores": formulas.cpu_cores(case["usage_ns"], case["prev_usage_ns"], elapsed)}
        case "node_cpu_cores_from_ticks":
            per_second = 1000 // case["tick_ms"]
            cores = formulas.node_cpu_cores(
                case["ticks"], case["prev_ticks"], case["elapsed_s"], per_second
            )
            return {"cores": cores}
        case "throttled_ratio":
            now = Throttling(case["nr_periods"], case["nr_throttled"], 0)
            before = Throttling(case["prev_nr_periods"], case["prev_nr_throttled"], 0)
            return {"ratio": formulas.throttled_ratio(now, before)}
        case "be_usage_milli":
            milli = formulas.best_effort_usage_millicores(
                case["usage_ns"], case["prev_usage_ns"], case["elapsed_ms"]
            )
            return {"milli": milli}
        case "be_real_limit_milli":
            cpus = parse.cpu_list(case["cpuset"].encode())
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
            return {"cold_bytes": parse.cold_bytes(text.encode())}
    raise LookupError(case["function"])


ADAPTERS: dict[str, Callable[[Case], object]] = {
    "cgroup_file_parsing": cgroup_file_parsing,
    "cgroup_paths": cgroup_paths,
    "usage_formulas": usage_formulas,
}
