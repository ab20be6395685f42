"""Node states, pods and tables for tests."""

from typing import Any

import msgspec

from pipeline.table import Table
from pipeline.times import format_time
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources, Usage

NOW = 1_700_000_000.0
GIB = 2.0**30
ROOM = Resources(cpu_millicores=4000, memory_bytes=16 << 30)


def node_state(
    node: str,
    *,
    cpu: float | None = 1.0,
    memory: float | None = 4 * GIB,
    cores: float | None = 4.0,
    room: float | None = 16 * GIB,
    age: float = 10.0,
    offset: int = 0,
    generation: int = 1,
    **more: Any,
) -> NodeStateRecord:
    """A node of 4 cores and 16 GiB that uses a quarter of each, 10 s before `NOW`."""
    return NodeStateRecord(
        node=node,
        as_of=format_time(NOW - age),
        generation=generation,
        offset=offset,
        epoch=1,
        window_seconds=30.0,
        coverage=1.0,
        allocatable=Usage(cpu_cores=cores, memory_bytes=room),
        usage=Usage(cpu_cores=cpu, memory_bytes=memory),
        **more,
    )


def any_pod(uid: str = "new", **fields: Any) -> PodRecord:
    """A Prod pod of namespace `d`, named by its UID, on no node."""
    usual: dict[str, Any] = {"node": "", "cgroup_uid": uid, "namespace": "d", "name": uid}
    return PodRecord(uid=uid, **(usual | {"pod_class": "prod"} | fields))


def running(pod: PodRecord, node: str, age: float = 9000.0) -> PodRecord:
    """The pod as it runs on a node since `age` seconds before `NOW`."""
    since = format_time(NOW - age)
    return msgspec.structs.replace(pod, node=node, phase="Running", scheduled_at=since)


def table_of(*states: NodeStateRecord, **more: Any) -> Table:
    table = Table(**more)
    for state in states:
        assert table.put_state(state)
    return table
