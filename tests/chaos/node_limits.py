"""Cgroups of the nodes of a chaos run, in which node actuators hold limits, and what they leave."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.cgroup_tree import CgroupTree, cgroup_tree
from tests.machine import CGROUP_ROOT, why_no_cgroups
from tests.processes import environment, springtide

UNDO_SECONDS = 60
POLICY = {
    "clusterStrategy": {
        "enable": True, "cpuSuppressThresholdPercent": 10, "cpuSuppressPolicy": "cfsQuota"
    }
}  # fmt: skip
"""A tenth of 32 cores without those that this machine uses: the quota changes with its load."""

Limits = Mapping[str, str]
"""The kernel's text of each file that limits something."""


class NodeLimits(NamedTuple):
    """Limits of a node before the run, at its end, and after `--undo`; `undo_code` is the exit code
    of that."""

    node: str
    before: Limits
    held: Limits
    after: Limits
    undo_code: int = 0


@contextmanager
def node_trees(nodes: Sequence[str]) -> Iterator[Mapping[str, CgroupTree]]:
    """A tree for each node; none where this machine cannot make cgroups (v1)."""
    with ExitStack() as stack:
        trees = {}
        if why_no_cgroups(CGROUP_ROOT) is None:
            for node in nodes:
                trees[node] = stack.enter_context(cgroup_tree(f"chaos-{node}"))
                for qos in ("besteffort", "burstable"):
                    trees[node].make(f"kubepods/{qos}")
        yield trees


def limits_of(tree: CgroupTree) -> Limits:
    names = ("shares", "cfs_quota_us", "cfs_period_us", "cfs_burst_us", "idle", "limit_in_bytes")
    return {
        f"{controller}/{path.relative_to(top)}": path.read_text()
        for controller in tree.controllers
        for top in [tree.directory(controller)]
        for path in sorted(top.rglob("*"))
        if path.name.partition(".")[2] in names
    }


def undo(
    node: str, tree: CgroupTree, before: Limits, flags: Sequence[str], log: Path
) -> NodeLimits:
    """Restore the limits of a node whose actuator was killed."""
    held = limits_of(tree)
    with log.open("ab") as file:
        code = subprocess.run(
            springtide("node-actuator", *flags, "--undo"), cwd=log.parent, env=environment(),
            stdout=file, stderr=file, timeout=UNDO_SECONDS, check=False,
        ).returncode  # fmt: skip
    return NodeLimits(node, before, held, limits_of(tree), code)


def limits_left(nodes: Sequence[NodeLimits]) -> Iterator[str]:
    """Yield limits that undo left, and nodes on which there was none to undo."""
    for node, before, held, after, code in nodes:
        if code != 0:
            yield f"{node}: undo of limits failed with {code}"
        for file in sorted(before.keys() | after.keys()):
            if before.get(file) != after.get(file):
                was, now = before.get(file, "absent"), after.get(file, "absent")
                yield f"{node}: {file} is {now.strip()} after undo, and was {was.strip()}"
        if held == before:
            yield f"{node}: no limit was held, so undo was not put to the test"
