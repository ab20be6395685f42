"""Groups of the node actuator's cgroup layer: conversions, order of writes, and the kernel's rules.

The rules are checked on the kernel of this machine, the order on trees of plain files, so that what
is written can be seen between the passes.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from actuators.node.cgroup_files import CgroupFiles, Hierarchy, write_file
from actuators.node.knob_files import KNOB_FILES, shares_of_weight, weight_of_shares
from pipeline.errors import CgroupWriteError, KernelFileError
from pipeline.processors.node_qos.cgroup_values import (
    Knob,
    Place,
    quota_us_of_millicores,
    shares_of_millicores,
)
from pipeline.processors.node_qos.write_order import order_writes
from tests.actuators.node.limit_tree import write_value
from tests.cgroup_tree import CGROUP_ROOT, CgroupTree, cgroup_tree
from tests.vectors.cases import Case
from tests.vectors.runner import Difference, NotBuiltError, group

_V1_NO_LIMIT = "-1 100000"


@group("actuators.node.knob_files, cgroup_values")
def shares_weight_conversion(case: Case) -> object:
    """A value that is refused has the result null."""
    function, value = case["function"], case["value"]
    v1, v2 = KNOB_FILES[1], KNOB_FILES[2]
    try:
        match function:
            case "shares_to_weight":
                shares = v1[Knob.CPU_SHARES][0].value(str(value))
                assert isinstance(shares, int)
                return {"result": weight_of_shares(shares)}
            case "weight_to_shares":
                weight = int(value)
                return {"result": shares_of_weight(weight)}
            case "milli_to_shares":
                return {"result": shares_of_millicores(value)}
            case "milli_to_quota":
                quota = v1[Knob.CPU_QUOTA][0].text_of(quota_us_of_millicores(value), _V1_NO_LIMIT)
                return {"result": int(quota.split()[0])}
            case "v1_value_to_v2_text":
                knob = {"quota": Knob.CPU_QUOTA}[case["file"]]
                quota_us = v1[knob][0].value(f"{value} 100000")
                return {"result": v2[knob][0].text_of(quota_us, "max 100000").split()[0]}
    except ValueError:
        return {"result": None}
    raise LookupError(function)


_KINDS: dict[str, tuple[str, Knob]] = {
    "cfs_quota": ("cpu", Knob.CPU_QUOTA),
    "memory_protection": ("memory", Knob.MEMORY_MIN),
    "cpuset": ("cpuset", Knob.CPUSET),
}


def _whole_text(given: Case, expected: Case) -> Difference | None:
    current = given["current"]
    if expected["error"]:
        return Difference(
            "a knob that cannot be read is not written: nobody could restore it",
            "a file in an unknown format is reported, and keeps its content",
            {"pass1": current, "final": current, "error": True},
        )
    if (given["kind"], given["version"]) != ("cfs_quota", "v2"):
        return None
    answer = dict(expected)
    for key in ("pass1", "final"):
        quota, *period = expected[key].split()
        answer[key] = " ".join(["max" if quota == "-1" else quota, *(period or ["100000"])])
    return Difference(
        "the period is written with the quota, and no -1 where the kernel wants max", "none", answer
    )


@group("write_order.order_writes, CgroupFiles", differs=_whole_text)
def leveled_merge_update(case: Case) -> object:
    """The content of the file after each pass."""
    controller, knob = _KINDS[case["kind"]]
    version: Literal[1, 2] = 1 if case["version"] == "v1" else 2
    place, current, target = Place("pod", knob), case["current"], case["target"]
    (kind,) = KNOB_FILES[1][knob]
    wanted = kind.value(f"{target} 100000" if knob is Knob.CPU_QUOTA else target)
    with TemporaryDirectory() as folder:
        (file,) = KNOB_FILES[version][knob]
        directory = Path(folder, place.path)
        directory.mkdir()
        (directory / file.name).write_text(f"{current}\n")
        if file.period_file:
            (directory / file.period_file).write_text("100000\n")
        files = CgroupFiles({controller: Hierarchy(version, folder)})
        try:
            now = files.read(place)
        except KernelFileError:
            return {"pass1": current, "final": current, "error": True}
        assert now is not None
        contents = []
        for writes in order_writes({place: now}, {place: wanted}):
            for write in writes:
                write_value(files, write.place, write.value)
            contents.append((directory / file.name).read_text().strip())
        files.close()
    return {"pass1": contents[0], "final": contents[1], "error": False}


_CONTROLLERS = ("cpu", "cpuset", "memory", "blkio")
_NUMBERS = count()
_FILES = {
    "quota": ("cpu", "cpu.cfs_quota_us"),
    "burst": ("cpu", "cpu.cfs_burst_us"),
    "idle": ("cpu", "cpu.idle"),
    "cpus": ("cpuset", "cpuset.cpus"),
    "limit": ("memory", "memory.limit_in_bytes"),
}
_USES_MEMORY = """
import os, sys, tempfile
anon, cache, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
pages = b"x" * anon
with tempfile.TemporaryFile(dir=folder) as file:
    file.write(b"x" * cache)
    file.flush()
    os.fsync(file.fileno())  # a slow disk delays the reclaim of dirty pages
    print("ready", flush=True)
    sys.stdin.read()
"""


@group(
    "actuators.node.cgroup_files.write_file, on this kernel",
    resolve=lambda wanted, answer: (
        {**answer, "read_back": None} if wanted.get("read_back") is None else answer
    ),
)
def kernel_v1_write_rules(case: Case) -> object:
    """A read_back of null was not recorded."""
    file, text, state = case["file"], case["write"].strip(), dict(case["state"].items())
    with _family() as tree:
        controller = "cpuset" if file == "cgroup.procs" else file.partition(".")[0]
        path = tree.directory(controller, f"parent/own/{file}")
        if file == "/proc/<pid>/oom_score_adj":
            _require(state.pop("cap_sys_resource") == _has_cap_sys_resource(), "capabilities")
            path = Path(f"/proc/{tree.python('parent/own', 'input()').pid}/oom_score_adj")
        if text == "<pid>":
            text = str(os.getpid())
        _set_up(tree, path, state)
        try:
            write_file(str(path), text)
        except CgroupWriteError as error:
            assert isinstance(error.__cause__, OSError)
            result = errno.errorcode[error.__cause__.errno or 0]
        else:
            result = "ok"
        return {"result": result, "read_back": path.read_text().strip()}


def _set_up(tree: CgroupTree, path: Path, state: Case) -> None:
    """Bring `parent/own` and its relatives into a state."""
    current, online = state.pop("current", None), state.pop("online", None)
    anon_bytes, cache_bytes = state.pop("anon_bytes", 0), state.pop("page_cache_bytes", 0)
    tasks = state.pop("tasks", 0)
    if online is not None:
        shown = Path("/sys/devices/system/cpu/online").read_text().strip()
        _require(online == shown, "CPUs")
    if current is not None and path.read_text().strip() != current:
        path.write_text(current)
    for key, value in state.items():
        relative, name = "parent/own", key
        for relation, directory in (("parent_", "parent"), ("child_", "parent/own/child")):
            if key.startswith(relation):
                relative, name = directory, key.removeprefix(relation)
        controller, file = _FILES[name]
        if relative.endswith("child"):
            tree.make(relative)
            mems = tree.directory("cpuset", "cpuset.mems").read_text()
            tree.write("cpuset", relative, "cpuset.mems", mems)
        tree.write(controller, relative, file, value or "\n")
    for _ in range(tasks):
        tree.python("parent/own", "input()")
    if anon_bytes or cache_bytes:
        command = (sys.executable, "-c", _USES_MEMORY, str(anon_bytes), str(cache_bytes))
        process = tree.run("parent/own", *command, "/var/tmp")
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"


@contextmanager
def _family() -> Iterator[CgroupTree]:
    """A cgroup `parent/own` of v1, with all CPUs."""
    is_v1 = not (CGROUP_ROOT / "cgroup.controllers").exists()
    _require(is_v1 and os.geteuid() == 0, "cgroups")
    with cgroup_tree(f"rules-{next(_NUMBERS)}", _CONTROLLERS) as tree:
        tree.make("parent/own")
        for relative in ("", "parent", "parent/own"):
            for file in ("cpuset.cpus", "cpuset.mems"):
                tree.write("cpuset", relative, file, (CGROUP_ROOT / "cpuset" / file).read_text())
        yield tree


def _has_cap_sys_resource() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 24 & 1)
    raise LookupError("CapEff")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise NotBuiltError(f"the case is of a machine with other {what}")
