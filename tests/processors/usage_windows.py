"""Windows of a node with named pods, for tests of usage series."""

from collections.abc import Mapping

from pipeline.processors.join.pod_facts import PodRow
from pipeline.processors.join.sample_join import NodeObjects, join
from pipeline.topics.nodes import Strategy
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import Window

LENGTH_MS = 30_000
GIB = float(1 << 30)


def usage_window(
    end_ms: int,
    cpu: float | None,
    *,
    sequence: int = 0,
    epoch: int = 1,
    node: str = "node-1",
    pods: Mapping[str, tuple[str, float]] | None = None,
) -> Window:
    """A window in which the node used `cpu` cores on average, and `pods` by uid, each with its
    name in the namespace shop, as many."""
    header = SampleHeader(
        node=node, machine_id="m", boot_id="b", epoch=epoch, sequence=sequence,
        window_start_ms=end_ms - LENGTH_MS, window_end_ms=end_ms,
    )  # fmt: skip
    rows = [_row("node", "", cpu)]
    rows += [_row("pod", uid, used) for uid, (_, used) in (pods or {}).items()]
    known = {
        uid: PodRow(pod_class=0, namespace="shop", name=name, uid=uid)
        for uid, (name, _) in (pods or {}).items()
        if name
    }
    return join(
        read_rows(encode_samples(SampleBatch(header, rows))), NodeObjects(None, known), Strategy(),
        sample_offset=0, appended_ms=end_ms + 100,
    )  # fmt: skip


def _row(kind: str, uid: str, cpu: float | None) -> dict[str, object]:
    return {
        "kind": kind, "id": uid, "coverage": 0.9, "cpu_cores_avg": cpu,
        "cpu_cores_p95": None if cpu is None else 2 * cpu, "memory_bytes_avg": GIB,
        "memory_bytes_max": 2 * GIB,
    }  # fmt: skip
