"""Windows of a node with named pods, for tests of usage series."""

from collections.abc import Mapping

from pipeline.topics.windows import Window
from tests.processors.joined import GIB, Row, header, joined, known_pod, view_of

LENGTH_MS = 30_000


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
    pods = pods or {}
    of = header(
        node, epoch=epoch, sequence=sequence, window_start_ms=end_ms - LENGTH_MS,
        window_end_ms=end_ms,
    )  # fmt: skip
    used = (_row("pod", uid, cores) for uid, (_, cores) in pods.items())
    known = (known_pod(uid, name=name) for uid, (name, _) in pods.items() if name)
    return joined(_row("node", "", cpu), *used, view=view_of(*known), of=of)


def _row(kind: str, uid: str, cpu: float | None) -> Row:
    return {
        "kind": kind, "id": uid, "coverage": 0.9, "cpu_cores_avg": cpu,
        "cpu_cores_p95": None if cpu is None else 2 * cpu, "memory_bytes_avg": GIB,
        "memory_bytes_max": 2 * GIB,
    }  # fmt: skip
