"""Groups of upstream's cases for which the product does nothing yet, and what is missing."""

from tests.vectors.runner import Group

_NUMA = "no exporter measures NUMA nodes, so Batch is not split by zone"

GROUPS: dict[str, Group | str] = {
    "batch_resource_numa": _NUMA,
    "pod_numa_split": _NUMA,
    "gpu_node_resource": "devices are not read, so nodes offer no GPU resources",
}
