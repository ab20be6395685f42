"""Usage that was fetched, as the samples that an exporter would have written.

All samples of providers are those of one exporter, whoever wrote them: it has no machine (`""`), so
that an exporter that comes later takes the models over, and it has counted windows since 1970, so
that the same window written twice has the same header, and one that is missing shows.

Owes the rest: a pod is on the node that `springtide.pods` has it on, under the name of its cgroup;
what a node has beside its pods is said to be unknown where not all of them are known.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pipeline.processors.provided.usage import Columns, Fetched, PodName, Window
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


Places = Callable[[str, str], Place | None]
"""Where the pod of this namespace and name is."""


@dataclass(slots=True)
class Sampled:
    """Samples of a window; `left_out` counts nodes and pods that are in none, by reason."""

    batches: list[SampleBatch] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


class Sampler:
    """Makes samples; remembers the pods that each node had."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, ...]] = {}

    def samples(
        self,
        fetched: Fetched,
        window: Window,
        places: Places,
        nodes: Collection[str] | None = None,
        served: Collection[str] = (),
    ) -> Sampled:
        """A sample of each node that was fetched.

        Only of `nodes`, where these are known; others go to `fetched.unknown_nodes`. Those that are
        `served` by an exporter are left alone.
        """
        made = Sampled()
        pods, unplaced = _by_node(fetched.pods, places, made.left_out)
        # Where none of them could be placed nothing is known of any.
        knows_pods = fetched.knows_pods and (bool(pods) or not fetched.pods)
        for node in sorted(fetched.nodes):
            if nodes is not None and node not in nodes:
                fetched.unknown_nodes.add(node)
            elif _STATED.isdisjoint(fetched.nodes[node]):
                made.left_out["no usage"] += 1
            elif node in served:
                made.left_out["served by an exporter"] += 1
            elif not knows_pods and node not in self._pods:
                # Without them all that the node uses would pass for the system's.
                made.left_out["pods unknown"] += 1
            else:
                own = pods.get(node, {}) if knows_pods else {uid: {} for uid in self._pods[node]}
                self._pods[node] = tuple(own)
                rows = _rows(fetched.nodes[node], own, knows_pods and node not in unplaced)
                made.batches.append(SampleBatch(_header(node, window), rows))
        return made


def _by_node(
    pods: Mapping[PodName, Columns], places: Places, left_out: Counter[str]
) -> tuple[dict[str, dict[str, Columns]], set[str]]:
    """Pods by node and the uid of their cgroups; and the nodes that have pods which are nowhere."""
    found: dict[str, dict[str, Columns]] = {}
    unplaced: set[str] = set()
    for pod, columns in pods.items():
        place = _place(pod, places)
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


def _place(pod: PodName, places: Places) -> Place | None:
    if pod.uid and pod.node:
        return Place(pod.node, pod.uid)
    place = places(pod.namespace, pod.name)
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
