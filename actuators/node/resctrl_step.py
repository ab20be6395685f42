"""Keep the groups of resctrl as the policy wants them, every few seconds.

The groups have Koordinator's names: only one of the two agents may act on a node.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from actuators.node import node_metrics
from actuators.node.resctrl_files import (
    ResctrlWrite,
    carry_out,
    cgroup_tasks,
    due_writes,
    read_info,
)
from pipeline.clock import Clock
from pipeline.errors import CgroupWriteError, KernelError
from pipeline.logs import get_logger
from pipeline.processors.node_qos.node_state import NodeState
from pipeline.processors.node_qos.resctrl_groups import kept_groups, resctrl_groups
from pipeline.settings.node_actuator_settings import FeatureMode
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord, Outcome

NAME: Final = "resctrl"
_ACTUATOR: Final = "node-actuator"
# Reading the tasks of all pods is much of a round.
_INTERVAL_SECONDS: Final = 10.0

log = get_logger(__name__)


class ResctrlStep:
    """Makes groups, changes their schemata and moves tasks.

    `root` is the mount of resctrl, `cgroups` the root of a hierarchy that all pods are in. `record`
    takes an action for each group that changes; moved tasks have none. `marker` is a file that
    exists while groups may be there that this feature made.
    """

    def __init__(
        self, node: str, mode: FeatureMode, root: Path, proc_root: Path, cgroups: Path,
        marker: Path, record: Callable[[ActionRecord], None], clock: Clock,
    ) -> None:  # fmt: skip
        self._node, self._mode, self._root, self._proc = node, mode, root, str(proc_root)
        self._cgroups, self._marker = cgroups, marker
        self._record, self._clock = record, clock
        self._next_at = float("-inf")
        self._observed: set[tuple[Path, str]] = set()

    def step(self, state: NodeState) -> None:
        """Decide for a node with a fresh view, and write. A failure stops no other write."""
        now = self._clock.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + _INTERVAL_SECONDS
        if self._mode != "act":
            self._give_back()
        if self._mode == "off":
            return
        try:
            info = read_info(self._root, self._proc)
            groups = None if info is None else resctrl_groups(state, info)
            if groups is None:
                return
            writes = list(due_writes(self._root, groups, kept_groups(state), self._tasks))
        except KernelError as error:
            node_metrics.WRITE_ERRORS.labels(NAME, "unreadable").inc()
            log.warning("resctrl cannot be read", per=NAME, why=error)
            return
        if self._mode == "observe":
            self._observe(writes)
            return
        if writes:
            self._marker.touch()
        for write in writes:
            self._write(write)

    def _give_back(self) -> None:
        """Remove the groups that were made in mode act."""
        try:
            removed = remove_groups(self._root, self._marker)
        except CgroupWriteError as error:
            node_metrics.WRITE_ERRORS.labels(NAME, error.reason).inc()
            log.warning("a group of resctrl is not removed", per=NAME, why=error)
        else:
            if removed:
                log.info("groups of resctrl are removed", groups=removed)

    def _tasks(self, path: str) -> set[int]:
        return cgroup_tasks(self._cgroups / path)

    def _observe(self, writes: list[ResctrlWrite]) -> None:
        """Record what would change, once."""
        wanted = {(write.path, write.text) for write in writes if write.kind != "task"}
        for write in writes:
            if (write.path, write.text) in wanted - self._observed:
                self._note(write, "observed")
        self._observed = wanted

    def _write(self, write: ResctrlWrite) -> None:
        try:
            carry_out(write)
        except CgroupWriteError as error:
            node_metrics.WRITE_ERRORS.labels(NAME, error.reason).inc()
            log.warning("resctrl cannot be written", per=write.kind, path=write.path, why=error)
            if write.kind != "task":
                self._note(write, "failed", str(error))
        else:
            if write.kind != "task":
                self._note(write, "done")

    def _note(self, write: ResctrlWrite, outcome: Outcome, error: str = "") -> None:
        node_metrics.CHANGES.labels(NAME, outcome).inc()
        place = str(write.path.relative_to(self._root))
        after = {"remove": None, "make": "group"}.get(write.kind, write.text)
        self._record(
            ActionRecord(
                node=self._node, at=format_time(self._clock.now()), actuator=_ACTUATOR,
                action=NAME, outcome=outcome, why="resctrl", error=error,
                before={place: write.before or None}, after={place: after},
            )
        )  # fmt: skip


def resctrl_marker(state_file: Path) -> Path:
    """The file beside the original values that says that this feature made groups."""
    return state_file.with_name(f"{state_file.name}.resctrl")


def remove_groups(root: Path, marker: Path) -> int:
    """Remove all groups that this feature makes, if it made any; returns how many. Their tasks go
    to the root. Raises `CgroupWriteError`."""
    if not marker.exists():
        return 0
    is_mounted = (root / "schemata").exists()
    writes = list(due_writes(root, (), {}, lambda _: set())) if is_mounted else []
    for write in writes:
        carry_out(write)
    marker.unlink()
    return len(writes)
