"""Convert fetched usage into the samples that an exporter would write.

All providers of one source write as one exporter. It has no machine (`""`), so that a real
exporter can take the models over. It numbers windows since 1970, so that the same window always has
the same header, and gaps are visible. A pod belongs to the node of its record in `springtide.pods`,
under the name of its cgroup. The system remainder of a node is unknown unless all its pods are
known.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from pipeline.processors.imported_usage.fetched_usage import (
    FetchedUsage,
    PodName,
    SampleColumns,
    TimeWindow,
)
from pipeline.topics.samples import SYSTEM_TIER, USAGES, Row, SampleBatch, SampleHeader

MACHINE_ID: Final = ""
BOOT_ID: Final = ""
EPOCH: Final = 0

# A node without any of these columns has no known usage.
_STATED: Final = frozenset(f"{usage}_avg" for usage in USAGES)


class PodPlace(NamedTuple):
    """A pod's node, and the uid in the name of its cgroup."""

    node: str
    cgroup_uid: str


class ClusterFacts(Protocol):
    """Nodes and pods by their records; all are empty where no source publishes records."""

    @property
    def nodes(self) -> Collection[str]: ...

    @property
    def nodes_with_pods(self) -> Collection[str]: ...

    def place(self, namespace: str, name: str) -> PodPlace | None:
        """The place of the pod with this name."""
        ...

    def served(self, window: TimeWindow) -> Collection[str]:
        """The nodes that an exporter has served shortly before `window`."""
        ...


@dataclass(slots=True)
class SampledWindow:
    """Samples of a window; `left_out` counts nodes and pods without a sample, by reason."""

    batches: list[SampleBatch] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


class SampleBuilder:
    """Make samples of the usage by `source`; remembers the pods of each node. With `corroborate`,
    nodes that an exporter serves get a sample, too."""

    def __init__(self, source: str = "", *, corroborate: bool = False) -> None:
        self._source = source
        self._corroborate = corroborate
        self._pods: dict[str, tuple[str, ...]] = {}

    def samples(
        self, fetched: FetchedUsage, window: TimeWindow, cluster: ClusterFacts
    ) -> SampledWindow:
        """Make a sample of each fetched node that is wanted. Nodes without a record, if
        others have one, are added to `fetched.unknown_nodes`."""
        sampled = SampledWindow()
        pods, unplaced = _group_by_node(fetched.pods, cluster, sampled.left_out)
        for node in pods.keys() - fetched.nodes.keys():
            sampled.left_out["pod of no node"] += len(pods.pop(node))
        exported = cluster.served(window)
        served = () if self._corroborate else exported
        for node in sorted(fetched.nodes):
            if cluster.nodes and node not in cluster.nodes:
                fetched.unknown_nodes.add(node)
            elif _STATED.isdisjoint(fetched.nodes[node]):
                sampled.left_out["no usage"] += 1
            elif node in served:
                sampled.left_out["served by an exporter"] += 1
            elif (own := self._pods_of(node, pods, fetched, cluster)) is None:
                # Without them all usage of the node would count as the system's.
                sampled.left_out["pods unknown"] += 1
            else:
                is_complete = node not in unplaced and all(own.values())
                rows = _rows(fetched.nodes[node], own, is_complete)
                sampled.batches.append(SampleBatch(self._header(node, window), rows))
        return sampled

    def _header(self, node: str, window: TimeWindow) -> SampleHeader:
        return SampleHeader(
            node=node,
            machine_id=MACHINE_ID,
            boot_id=BOOT_ID,
            epoch=EPOCH,
            sequence=window.start_ms // (window.end_ms - window.start_ms),
            window_start_ms=window.start_ms,
            window_end_ms=window.end_ms,
            source=self._source,
        )

    def _pods_of(
        self,
        node: str,
        pods: Mapping[str, Mapping[str, SampleColumns]],
        fetched: FetchedUsage,
        cluster: ClusterFacts,
    ) -> Mapping[str, SampleColumns] | None:
        """The pods of a node; if the source reports none, the last known pods without usage. None
        if these are unknown, too."""
        own = pods.get(node, {})
        last_known = self._pods.get(node)
        # The source may not ask the node's kubelet.
        has_some = node in cluster.nodes_with_pods if cluster.nodes_with_pods else bool(last_known)
        if own or (fetched.knows_pods and not has_some and (pods or not fetched.pods)):
            self._pods[node] = tuple(own)
            return own
        return None if last_known is None else {uid: {} for uid in last_known}


def _group_by_node(
    pods: Mapping[PodName, SampleColumns], cluster: ClusterFacts, left_out: Counter[str]
) -> tuple[dict[str, dict[str, SampleColumns]], set[str]]:
    """Pods by node and the uid of their cgroups, and the nodes with pods whose place is unknown."""
    by_node: dict[str, dict[str, SampleColumns]] = {}
    unplaced: set[str] = set()
    for pod, columns in pods.items():
        place = _place(pod, cluster)
        if place is None:
            left_out["pod not known"] += 1
            unplaced.add(pod.node)
        elif place.cgroup_uid in (own := by_node.setdefault(place.node, {})):
            # Two usages of one pod: neither is trusted.
            left_out["pod twice"] += 1
            own[place.cgroup_uid] = {}
        else:
            own[place.cgroup_uid] = columns
    return by_node, unplaced


def _place(pod: PodName, cluster: ClusterFacts) -> PodPlace | None:
    if pod.uid and pod.node:
        return PodPlace(pod.node, pod.uid)
    place = cluster.place(pod.namespace, pod.name)
    if place is None or (pod.node and pod.node != place.node):
        # A pod of the same name on another node is another pod.
        return None
    return place


def _rows(node: SampleColumns, pods: Mapping[str, SampleColumns], is_complete: bool) -> list[Row]:
    rows: list[Row] = [{"kind": "node", "id": "", **node}]
    if not is_complete:
        # An empty row: usage of unknown pods would count as the system's.
        system = {"kind": "tier", "id": SYSTEM_TIER, "coverage": node.get("coverage")}
        rows.append(system)
    rows += [{"kind": "pod", "id": uid, **pods[uid]} for uid in sorted(pods)]
    return rows
