"""Usage that was fetched, as the samples that an exporter would have written.

All samples of providers are those of one exporter, whoever wrote them: it has no machine (`""`), so
that an exporter that comes later takes the models over, and it has counted windows since 1970, so
that the same window written twice has the same header, and one that is missing shows.

Owes the rest: a pod is on the node that `springtide.pods` has it on, under the name of its cgroup;
what a node has beside its pods is said to be unknown where not all of them are known.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from pipeline.processors.provided.fetched_usage import Columns, Fetched, PodName, Window
from pipeline.topics.samples import SYSTEM_TIER, USAGES, Row, SampleBatch, SampleHeader

MACHINE_ID: Final = ""
BOOT_ID: Final = ""
EPOCH: Final = 0


# Without any of these nothing was learned of what a node uses.
_STATED: Final = frozenset(f"{usage}_avg" for usage in USAGES)


class Place(NamedTuple):
    """Where a pod is, and what its cgroup is named by."""

    node: str
    cgroup_uid: str


class Cluster(Protocol):
    """What is known beside the source; where nobody tells of nodes or pods there are none."""

    @property
    def nodes(self) -> Collection[str]:
        """The names of all nodes."""
        ...

    @property
    def peopled(self) -> Collection[str]:
        """The nodes that have pods."""
        ...

    def place(self, namespace: str, name: str) -> Place | None:
        """Where the pod of this name is."""
        ...

    def served(self, window: Window) -> Collection[str]:
        """The nodes of which an exporter has published lately, as seen from `window`."""
        ...


@dataclass(slots=True)
class Sampled:
    """Samples of a window; `left_out` counts nodes and pods that are in none, by reason."""

    batches: list[SampleBatch] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


class Sampler:
    """Makes samples; remembers the pods that each node had."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, ...]] = {}

    def samples(self, fetched: Fetched, window: Window, cluster: Cluster) -> Sampled:
        """A sample of each node that was fetched, but of those that an exporter serves. Where nodes
        are known, others go to `fetched.unknown_nodes`."""
        made = Sampled()
        pods, unplaced = _by_node(fetched.pods, cluster, made.left_out)
        for node in pods.keys() - fetched.nodes.keys():
            made.left_out["pod of no node"] += len(pods.pop(node))
        served = cluster.served(window)
        for node in sorted(fetched.nodes):
            if cluster.nodes and node not in cluster.nodes:
                fetched.unknown_nodes.add(node)
            elif _STATED.isdisjoint(fetched.nodes[node]):
                made.left_out["no usage"] += 1
            elif node in served:
                made.left_out["served by an exporter"] += 1
            elif (own := self._pods_of(node, pods, fetched, cluster)) is None:
                # Without them all that the node uses would pass for the system's.
                made.left_out["pods unknown"] += 1
            else:
                is_complete = node not in unplaced and all(own.values())
                rows = _rows(fetched.nodes[node], own, is_complete)
                made.batches.append(SampleBatch(_header(node, window), rows))
        return made

    def _pods_of(
        self,
        node: str,
        pods: Mapping[str, Mapping[str, Columns]],
        fetched: Fetched,
        cluster: Cluster,
    ) -> Mapping[str, Columns] | None:
        """The pods of a node: where the source says nothing of any, those that it had, with
        nothing known of them. None where that is not known, either."""
        own = pods.get(node, {})
        had = self._pods.get(node)
        # It may be that nobody asks its kubelet.
        has_some = node in cluster.peopled if cluster.peopled else bool(had)
        if own or (fetched.knows_pods and not has_some and (pods or not fetched.pods)):
            self._pods[node] = tuple(own)
            return own
        return None if had is None else {uid: {} for uid in had}


def _by_node(
    pods: Mapping[PodName, Columns], cluster: Cluster, left_out: Counter[str]
) -> tuple[dict[str, dict[str, Columns]], set[str]]:
    """Pods by node and the uid of their cgroups; and the nodes that have pods which are nowhere."""
    found: dict[str, dict[str, Columns]] = {}
    unplaced: set[str] = set()
    for pod, columns in pods.items():
        place = _place(pod, cluster)
        if place is None:
            left_out["pod not known"] += 1
            unplaced.add(pod.node)
        elif place.cgroup_uid in (own := found.setdefault(place.node, {})):
            # Of two that say what one pod uses neither is believed.
            left_out["pod twice"] += 1
            own[place.cgroup_uid] = {}
        else:
            own[place.cgroup_uid] = columns
    return found, unplaced


def _place(pod: PodName, cluster: Cluster) -> Place | None:
    if pod.uid and pod.node:
        return Place(pod.node, pod.uid)
    place = cluster.place(pod.namespace, pod.name)
    if place is None or (pod.node and pod.node != place.node):
        # Its namesake on another node is another pod.
        return None
    return place


def _rows(node: Columns, pods: Mapping[str, Columns], is_complete: bool) -> list[Row]:
    rows: list[Row] = [{"kind": "node", "id": "", **node}]
    if not is_complete:
        # A row that says nothing: the remainder is not what the known pods leave.
        system = {"kind": "tier", "id": SYSTEM_TIER, "coverage": node.get("coverage")}
        rows.append(system)
    rows += [{"kind": "pod", "id": uid, **pods[uid]} for uid in sorted(pods)]
    return rows


def _header(node: str, window: Window) -> SampleHeader:
    return SampleHeader(
        node=node,
        machine_id=MACHINE_ID,
        boot_id=BOOT_ID,
        epoch=EPOCH,
        sequence=window.start_ms // (window.end_ms - window.start_ms),
        window_start_ms=window.start_ms,
        window_end_ms=window.end_ms,
    )
