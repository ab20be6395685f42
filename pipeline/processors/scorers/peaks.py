"""Peaks of Trimaran: nodes on which the pod increases power least.

power(x) = k0 + k1 * exp(k2 * x), x being percent of the node's capacity. Source: the plugin's code,
except for nodes whose increase is unknown: upstream gives them the lowest cost, so that they are
the best. Here they are the worst.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.scorers.load_statistics import average_percent
from pipeline.processors.scorers.rounding import MAX_SCORE
from pipeline.processors.scorers.scorer import (
    NodesView,
    PodDemand,
    Scorer,
    ScorerArgs,
    Tree,
    usage_expires,
)

_COST_UNITS: Final = 1e15
_LARGEST_COST: Final = 9.2e18


class _PowerConstants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    k0: float
    k1: float
    k2: float


class PeaksArgs(ScorerArgs, frozen=True, kw_only=True):
    watcher_address: str | None = None
    node_power_model: dict[str, _PowerConstants] = msgspec.field(default_factory=dict)


def power_rise(
    model: FloatArray,
    used_percent: FloatArray,
    capacity_millicores: FloatArray,
    request_millicores: float,
) -> FloatArray:
    """How much more power nodes take with the pod, (nodes,) in the unit of `model` (3, nodes): k0,
    k1 and k2. NaN without model, measurement or capacity, and beyond 100 percent."""
    _, k1, k2 = model
    with np.errstate(all="ignore"):
        percent = used_percent + 100 * request_millicores / capacity_millicores
        rise = k1 * (np.exp(k2 * percent) - np.exp(k2 * used_percent))
        known = (capacity_millicores > 0) & (percent <= 100) & np.isfinite(rise)
    return np.where(known, rise, np.nan)


def costs(rise: FloatArray) -> IntArray:
    """The rise as a whole number, as in the plugin; 0 where it is unknown."""
    units = np.clip(rise * _COST_UNITS, -_LARGEST_COST, _LARGEST_COST)
    return np.where(np.isnan(rise), 0.0, units).astype(np.int64)


def cheapest_first(cost: IntArray, known: BoolArray) -> IntArray:
    """Costs as scores, (nodes,): 100 for the lowest, 0 for the highest and where it is not `known`,
    linear and truncated. All 0 if no node costs anything."""
    if not known.any() or not cost[known].any():
        return np.zeros(len(cost), np.int64)
    lowest, highest = int(cost[known].min()), int(cost[known].max())
    # Differences may exceed signed 64 bits, and their multiples unsigned ones: count the steps that
    # a difference reaches.
    spread = max(highest - lowest, 1)
    steps = [-(-spread * step // MAX_SCORE) for step in range(1, MAX_SCORE + 1)]
    above = np.where(known, cost, lowest).astype(np.uint64) - np.uint64(lowest % 2**64)
    reached = np.searchsorted(np.array(steps, np.uint64), above, side="right")
    return np.where(known, MAX_SCORE - reached, 0)


def node_power_rise(nodes: NodesView, demand: PodDemand, args: PeaksArgs) -> FloatArray:
    """How much more power nodes take with the pod, (nodes,); NaN is unknown."""
    model = nodes.by_name(args.node_power_model, ("k0", "k1", "k2"))
    capacity = nodes.allocatable("cpu", "capacity").astype(np.float64)
    return power_rise(model, average_percent(nodes, "cpu"), capacity, demand.counted["request:cpu"])


def score(nodes: NodesView, demand: PodDemand, args: PeaksArgs) -> IntArray:
    rise = node_power_rise(nodes, demand, args)
    return cheapest_first(costs(rise), np.isfinite(rise))


def _keys(tree: Tree) -> Tree:
    """Upstream spells keys as its Go fields, `NodePowerModel`."""
    return {name[:1].lower() + name[1:]: value for name, value in tree.items()}


def _notes(tree: Tree, args: PeaksArgs) -> Iterator[str]:
    if not args.node_power_model:
        yield "without nodePowerModel every node is as good as any other"


SCORER: Final = Scorer(
    name="Peaks",
    source="Trimaran",
    text="prefers nodes on which the pod increases power least, by `nodePowerModel`",
    args=PeaksArgs,
    score=score,
    notes=_notes,
    keys=_keys,
    expiration_seconds=usage_expires,
)
