"""Batch per NUMA zone, for the zones of many nodes at once (colocation 12).

A zone is worked out as a node is, by the same formulas: its allocatable is its capacity, and its
part of everything else is an even share. Shares are whole millicores and bytes, rounded up, so that
zones never come to more than they would undivided; upstream keeps thousandths of a byte.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np

from pipeline.errors import InvalidPolicyError
from pipeline.processors.arrays import IntArray
from pipeline.processors.overcommit.batch import Batch, batch
from pipeline.processors.overcommit.resource_columns import Nodes, Pods, Strategies

RESOURCE_STATUS: Final = "scheduling.koordinator.sh/resource-status"
"""Annotation of a Pod: the CPUs and NUMA nodes that a scheduler gave it."""

_MOST_ZONES: Final = 2**31
"""The kernel numbers them in 32 bits."""


class Zones(NamedTuple):
    """Of each zone (zones,): the row of its node, and its number there; its allocatable (zones, 2).
    Zones of a node that have neither CPU nor memory are not among them."""

    node: IntArray
    number: IntArray
    allocatable: IntArray


class Bindings(NamedTuple):
    """The zones that pods are bound to, a row for each pair (pairs,): the row of the pod, and the
    number of the zone on its node. A pod without any may be in every zone."""

    pod: IntArray
    number: IntArray


def zone_batch(
    nodes: Nodes,
    pods: Pods,
    strategies: Strategies,
    zones: Zones,
    bindings: Bindings,
    mid: IntArray | None = None,
) -> Batch:
    """What each zone has for Batch, (zones, 2), and the terms of it.

    System, host applications and what is reserved are spread evenly over the zones of a node, as
    are pods over theirs, and what is promised to Mid, `mid` (nodes, 2): nothing says where they
    are. Of a node without zones nothing is found.
    """
    rows = zones.node
    counts = np.bincount(rows, minlength=len(nodes.capacity))
    of_zones = Nodes._make(column[rows] for column in nodes)
    outside = nodes.system + nodes.prod_apps + nodes.mid_apps
    per_zone = counts[rows]
    nothing = np.zeros_like(zones.allocatable)
    pod, zone, among = spread(pods.node, zones, bindings)
    of_pods = Pods._make(column[pod] for column in pods)
    return batch(
        of_zones._replace(
            capacity=zones.allocatable,
            allocatable=zones.allocatable,
            kubelet_reserved=shares(of_zones.kubelet_reserved, per_zone),
            annotated_reserved=shares(of_zones.annotated_reserved, per_zone),
            # One share of the sum, not the sum of shares that were each rounded up.
            system=shares(outside[rows], per_zone),
            prod_apps=nothing,
            mid_apps=nothing,
        ),
        of_pods._replace(
            node=zone,
            request=shares(of_pods.request, among),
            usage=shares(of_pods.usage, among),
        ),
        Strategies._make(column[rows] for column in strategies),
        None if mid is None else shares(mid[rows], per_zone),
    )


def spread(
    pod_nodes: IntArray, zones: Zones, bindings: Bindings
) -> tuple[IntArray, IntArray, IntArray]:
    """Which pods (`pod_nodes` (pods,) are the rows of their nodes) are in which zones: a row for
    each pair of pod and zone, and among how many zones that pod is divided.

    A binding to a zone that its node does not have counts for nothing; a pod without another is in
    every zone of its node.
    """
    order = np.argsort(zones.node, kind="stable")
    firsts = np.searchsorted(zones.node[order], np.arange(pod_nodes.max(initial=-1) + 2))
    starts, counts = firsts[pod_nodes], (firsts[1:] - firsts[:-1])[pod_nodes]
    pod = np.arange(len(pod_nodes)).repeat(counts)
    within = np.arange(len(pod)) - (counts.cumsum() - counts).repeat(counts)
    zone = order[starts.repeat(counts) + within]
    is_there = (bindings.number >= 0) & (bindings.number < _MOST_ZONES)
    wanted = bindings.pod[is_there] * _MOST_ZONES + bindings.number[is_there]
    is_bound = np.isin(pod * _MOST_ZONES + zones.number[zone], wanted)
    bound = np.bincount(pod, weights=is_bound, minlength=len(pod_nodes)).astype(np.int64)
    taken = is_bound | (bound[pod] == 0)
    pod, zone = pod[taken], zone[taken]
    return pod, zone, np.where(bound > 0, bound, counts)[pod]


def shares(amounts: IntArray, among: IntArray) -> IntArray:
    """One of so many (n,) even shares of each of `amounts` (n, 2), rounded up; among none it is
    whole."""
    share: IntArray = -(-amounts // np.maximum(among, 1)[:, None])
    return share


class _NumaResource(msgspec.Struct, frozen=True):
    node: int


class _ResourceStatus(msgspec.Struct, frozen=True, rename={"zones": "numaNodeResources"}):
    zones: tuple[_NumaResource, ...] | None = None


def bound_zones(annotations: Mapping[str, str]) -> frozenset[int]:
    """The numbers of the zones that a pod is bound to, none if nobody says.

    Raises InvalidPolicyError for an annotation that cannot be read: it binds the pod to nothing.
    """
    text = annotations.get(RESOURCE_STATUS)
    if not text:
        return frozenset()
    try:
        said = msgspec.json.decode(text, type=_ResourceStatus)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidPolicyError(f"annotation {RESOURCE_STATUS}: {error!s:.200}") from error
    return frozenset(one.node for one in said.zones or () if 0 <= one.node < _MOST_ZONES)
