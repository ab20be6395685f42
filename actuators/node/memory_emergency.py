"""Kill a pod of Batch or Free when memory is about to run out.

Off unless the settings name it: no other setting switches it on. The UID in the name of the cgroup
is checked just before, and on v1 also the cgroup of each process. On v2 the kernel kills a whole
cgroup at once; on v1 processes are killed one by one, which needs the process IDs of the host.
"""

import os
import posixpath
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from actuators.node.cgroup_files import Hierarchy, write_file
from actuators.node.stop_file import STOP_FILE, is_stopped
from node_exporter.kernel.cgroup_paths import Driver, parse_pod_dir
from pipeline.clock import Clock
from pipeline.errors import CgroupGoneError, CgroupWriteError, KernelError
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.node_qos.memory_emergency import NAME, Kill, MemoryEmergency
from pipeline.processors.node_qos.node_state import NodeState
from pipeline.processors.node_qos.relief_requests import ACTUATOR
from pipeline.settings.node_actuator_settings import FeatureMode
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord, Outcome

log = get_logger(__name__)

KILLS: Final = counter(
    "node_actuator_emergency_kills",
    "Pods killed because memory was about to run out: done, observed, refused or failed.",
    ["result"],
)
USAGE_SECONDS: Final = 3.0
"""Usage that is older kills nothing."""
_PASSES: Final = 50
"""Over the processes of a cgroup on v1, because they may fork meanwhile."""
_PAUSE_SECONDS: Final = 0.002
"""Before a pass that waits for processes to end."""


def emergency_mode(features: Mapping[str, FeatureMode]) -> FeatureMode:
    """The mode by `node_actuator.features`: off unless it is named there."""
    return features.get(NAME, "off")


class EmergencyKiller:
    """Kills at most one pod in each call of `step`.

    `memory` is the hierarchy with the memory controller, `record` takes an action for each kill.
    """

    def __init__(
        self, node: str, mode: FeatureMode, memory: Hierarchy,
        record: Callable[[ActionRecord], None], clock: Clock, stop_file: Path = STOP_FILE,
    ) -> None:  # fmt: skip
        self._node, self._mode, self._memory = node, mode, memory
        self._record, self._clock, self._stop_file = record, clock, stop_file
        self._emergency = MemoryEmergency()

    def step(self, state: NodeState) -> None:
        """Decide for a node with a fresh view, and kill. Blocks for a few milliseconds."""
        if self._mode == "off" or abs(self._clock.now() - state.at) > USAGE_SECONDS:
            return
        kill = self._emergency.victim(state)
        if kill is None:
            return
        if self._mode == "observe":
            self._note(kill, "observed")
        elif is_stopped(self._stop_file):
            self._note(kill, "refused", f"evictions are stopped by {self._stop_file}")
        else:
            self._kill(kill)

    def _kill(self, kill: Kill) -> None:
        try:
            kill_pod(self._memory, kill.pod.path, kill.pod.uid)
        except CgroupGoneError:
            log.info("the pod to kill has ended", pod=_name(kill))
        except (KernelError, OSError) as error:
            self._note(kill, "failed", str(error))
        else:
            self._note(kill, "done")

    def _note(self, kill: Kill, outcome: Outcome, error: str = "") -> None:
        KILLS.labels(outcome).inc()
        log.warning("memory is about to run out: a pod is killed", pod=_name(kill), outcome=outcome,
                    why=kill.why, error=error)  # fmt: skip
        self._record(
            ActionRecord(
                node=self._node, at=format_time(self._clock.now()), actuator=ACTUATOR, action=NAME,
                outcome=outcome, why=kill.why, before={_name(kill): kill.pod.uid},
                after={_name(kill): None}, error=error,
            )
        )  # fmt: skip


def kill_pod(memory: Hierarchy, path: str, uid: str) -> None:
    """Kill all processes of the pod with this UID, whose cgroup is at `path`.

    Raises `CgroupWriteError` if the cgroup is not that of a pod with this UID, if its processes are
    in another cgroup or not visible, if there is none, or if they are still there afterwards;
    `CgroupGoneError` if it was removed.
    """
    name = posixpath.basename(path)
    driver = Driver.SYSTEMD if name.endswith(".slice") else Driver.CGROUPFS
    parts = path.split("/")
    if len(parts) < 2 or {"", ".", ".."}.intersection(parts) or parse_pod_dir(driver, name) != uid:
        raise CgroupWriteError(f"not the cgroup of pod {uid}", reason="refused", path=path)
    directory = Path(memory.root, path)
    if memory.version == 2:
        write_file(str(directory / "cgroup.kill"), "1")
        return
    killed: set[int] = set()
    for _ in range(_PASSES):
        processes = {*_processes(directory)} - killed
        if not processes:
            break
        # A process that ends belongs to the root of the hierarchy before it leaves the list.
        elsewhere = {process for process in processes if not _kill_process(process, path)}
        killed |= processes - elsewhere
        if processes == elsewhere:
            time.sleep(_PAUSE_SECONDS)
    else:
        problem = "new processes are started all the time"
        if elsewhere:
            problem = f"process {min(elsewhere)} is in another cgroup"
        raise CgroupWriteError(problem, reason="refused", path=path)
    if not killed:
        # To another process namespace v1 lists nothing at all.
        raise _not_visible(path)


def _processes(directory: Path) -> Iterator[int]:
    """The processes in a cgroup and below it."""
    if not directory.is_dir():
        raise CgroupGoneError("the cgroup was removed", path=str(directory))
    for folder, _, _ in os.walk(directory):
        with suppress(FileNotFoundError):
            yield from map(int, Path(folder, "cgroup.procs").read_text().split())


def _kill_process(process: int, path: str) -> bool:
    """Kill a process if it is in the cgroup at `path` or below it; returns False if it is in
    another one."""
    if process == 0:
        raise _not_visible(path)
    try:
        # The handle stays that of this process, also if its ID is used again.
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        if not _is_within(_memory_cgroup(process), path):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass
    finally:
        os.close(handle)
    return True


def _not_visible(path: str) -> CgroupWriteError:
    return CgroupWriteError(
        "no process of the pod is visible", reason="forbidden", path=path,
        hint="run the node actuator with the process IDs of the host (hostPID)",
    )  # fmt: skip


def _memory_cgroup(process: int) -> str:
    """The cgroup of a process in the hierarchy of memory; empty if it has none."""
    for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
        _, controllers, cgroup = line.split(":", 2)
        if "memory" in controllers.split(","):
            return cgroup
    return ""


def _is_within(cgroup: str, path: str) -> bool:
    return f"/{path}/" in f"{cgroup}/"


def _name(kill: Kill) -> str:
    return f"{kill.pod.namespace}/{kill.pod.name}"
