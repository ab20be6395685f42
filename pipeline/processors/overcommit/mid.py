"""Mid: requests of Prod that will not be used, and a share of unrequested capacity.

`FORMULAS` has the published formulas by name: `source` is Koordinator's code, `v1.6` and `v1.3` are
the notes of its releases, `proposal` its design proposal. They differ, and users may depend on any
of them. Static mode overrides all of them. Each formula has its computation and, beside it, its
expressions for `explain`; a test computes both and compares them.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.model.resource_pairs import per_resource
from pipeline.processors.overcommit.resource_columns import (
    NodeAmounts,
    PodAmounts,
    PolicyColumns,
    percent_of,
    sum_by_node,
)
from pipeline.processors.overcommit.tier import FormulaText, TermLine, Tier
from pipeline.processors.policy.colocation_config import STATIC
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import Resources

DEFAULT_FORMULA: Final = Overcommit().mid_formula
_NOTHING: Final = np.zeros((1, 2), np.int64)


class _Inputs(NamedTuple):
    """Inputs of a formula: `unused` is the node's present idle capacity, `allocated` the requests
    of Prod."""

    nodes: NodeAmounts
    policies: PolicyColumns
    unused: IntArray
    allocated: IntArray

    @property
    def limit(self) -> IntArray:
        return percent_of(self.nodes.allocatable, self.policies.pair("mid_{}_threshold_percent"))

    @property
    def unallocated(self) -> IntArray:
        """What requests of Prod leave of allocatable, and of capacity without processes outside of
        Kubernetes."""
        nodes = self.nodes
        room = np.minimum(nodes.allocatable, nodes.capacity - outside(nodes))
        return np.asarray(np.maximum(room - self.allocated, 0))

    def unallocated_share(self, unallocated: IntArray) -> IntArray:
        return percent_of(unallocated, self.policies.pair("mid_unallocated_percent"))

    def above_peak(self, requests: IntArray) -> IntArray:
        """Requests above the peak of Prod; 0 if the peak is unknown."""
        above = np.maximum(requests - self.nodes.prod_peak, 0)
        return np.where(per_resource(self.nodes.has_peak), above, 0)

    def tier(
        self, amount: IntArray, reclaimable: IntArray, unallocated: IntArray, limit: IntArray
    ) -> Tier:
        terms = {
            "allocatable": self.nodes.allocatable,
            "allocated": self.allocated,
            "prod_peak": self.nodes.prod_peak,
            "reclaimable": reclaimable,
            "unused": self.unused,
            "unallocated": unallocated,
            "limit": limit,
        }
        return Tier(amount, terms)


def allocated(nodes: int, pods: PodAmounts) -> IntArray:
    """What Prod asked for on each node, (nodes, 2)."""
    return sum_by_node(nodes, pods, pods.request, pods.is_prod & pods.is_listed)


def unmeasured(nodes: int, pods: PodAmounts) -> IntArray:
    """Requests of Prod pods without usage, (nodes, 2): how much of them will be used is unknown."""
    return sum_by_node(nodes, pods, pods.request, pods.is_prod & pods.is_listed & ~pods.has_usage)


def outside(nodes: NodeAmounts) -> IntArray:
    """Usage or reservation of processes outside of Kubernetes, (nodes, 2), whichever is larger."""
    return np.asarray(np.maximum(nodes.system + nodes.prod_apps, nodes.reserved))


def mid(
    nodes: NodeAmounts, allocated: IntArray, policies: PolicyColumns, formula: str = DEFAULT_FORMULA
) -> Tier:
    """Compute Mid of each node; `allocated` are the requests of Prod. Raises KeyError for an
    unknown formula."""
    unused = np.where(per_resource(nodes.has_usage), np.maximum(nodes.capacity - nodes.usage, 0), 0)
    tier = FORMULAS[formula].compute(_Inputs(nodes, policies, unused, allocated))
    fixed = percent_of(nodes.capacity, policies.pair("mid_static_{}_reserved_percent"))
    most = percent_of(nodes.capacity, policies.pair("mid_{}_threshold_percent"))
    is_static = policies.pair("mid_reclaim_mode") == STATIC
    return tier._replace(amount=np.where(is_static, np.minimum(fixed, most), tier.amount))


FIXED: Final = "min(trunc(capacity * fixed / 100), trunc(capacity * most / 100))"
"""The amount in static mode."""


class Formula(NamedTuple):
    """A formula of Mid: its computation, and the expressions of the amount and of what Prod leaves
    unused; without the latter the predictor decides that."""

    compute: Callable[[_Inputs], Tier]
    amount: str
    reclaimable: str = ""


def _source(inputs: _Inputs) -> Tier:
    """Koordinator's code: of capacity, and with the share of unallocated below the limit."""
    nodes = inputs.nodes
    unallocated = np.maximum(nodes.capacity - outside(nodes) - inputs.allocated, 0)
    reclaimable = np.minimum(nodes.reclaimable, inputs.unused)
    limit = percent_of(nodes.capacity, inputs.policies.pair("mid_{}_threshold_percent"))
    amount = np.minimum(reclaimable + inputs.unallocated_share(unallocated), limit)
    return inputs.tier(amount, reclaimable, unallocated, limit)


def _v1_6(inputs: _Inputs) -> Tier:
    """Koordinator's notes of release 1.6: at most the node's idle capacity."""
    reclaimable = np.minimum(inputs.above_peak(inputs.allocated), inputs.unused)
    unallocated = inputs.unallocated
    return _limited(inputs, reclaimable, unallocated, inputs.unallocated_share(unallocated))


def _v1_3(inputs: _Inputs) -> Tier:
    """Koordinator's notes of release 1.3."""
    return _limited(inputs, inputs.above_peak(inputs.allocated), inputs.unallocated)


def _proposal(inputs: _Inputs) -> Tier:
    """Koordinator's proposal: a share of Prod's requests, less its peak."""
    return _limited(inputs, _share_above_peak(inputs), inputs.unallocated)


def _proposal_unallocated(inputs: _Inputs) -> Tier:
    """Koordinator's proposal for later: with all unallocated capacity."""
    unallocated = inputs.unallocated
    return _limited(inputs, _share_above_peak(inputs), unallocated, unallocated)


def _share_above_peak(inputs: _Inputs) -> IntArray:
    share = percent_of(inputs.allocated, inputs.policies.pair("mid_reclaim_percent"))
    return inputs.above_peak(share)


def _limited(
    inputs: _Inputs, reclaimable: IntArray, unallocated: IntArray, more: IntArray = _NOTHING
) -> Tier:
    limit = inputs.limit
    amount = np.minimum(reclaimable, limit) + more
    return inputs.tier(amount, reclaimable, unallocated, limit)


_ABOVE_PEAK: Final = "max(allocated - prod_peak, 0)"
_SHARED: Final = "max(trunc(allocated * share / 100) - prod_peak, 0)"
_LIMITED: Final = "min(reclaimable, limit)"
_UNALLOCATED: Final = "trunc(unallocated * percent / 100)"

FORMULAS: Final[Mapping[str, Formula]] = {
    "proposal": Formula(_proposal, _LIMITED, _SHARED),
    "proposal-unallocated": Formula(_proposal_unallocated, f"{_LIMITED} + unallocated", _SHARED),
    "v1.3": Formula(_v1_3, _LIMITED, _ABOVE_PEAK),
    "v1.6": Formula(_v1_6, f"{_LIMITED} + {_UNALLOCATED}", f"min({_ABOVE_PEAK}, unused)"),
    "source": Formula(_source, f"min(reclaimable + {_UNALLOCATED}, limit)"),
}


def formula_in_force(policy: Overcommit) -> str:
    """The formula in force. An unknown one, as in a record of a newer release, counts as the
    default."""
    return policy.mid_formula if policy.mid_formula in FORMULAS else DEFAULT_FORMULA


def formula_text(
    record: NodeResourcesRecord, resource: str, terms: Mapping[str, float]
) -> FormulaText:
    """The formula of Mid for `resource` (cpu or memory) of a record with these `terms` and the
    capacity."""
    policy = record.strategy
    values = {
        **terms,
        "percent": policy.mid_unallocated_percent,
        "share": policy.mid_reclaim_percent,
        "fixed": getattr(policy, f"mid_static_{resource}_reserved_percent"),
        "most": getattr(policy, f"mid_{resource}_threshold_percent"),
    }
    if policy.mid_reclaim_mode == STATIC:
        return FormulaText("formula: a fixed share", [TermLine("capacity")], FIXED, values)
    name = formula_in_force(policy)
    formula = FORMULAS[name]
    is_peak_known = record.mid_terms.prod_peak != Resources()
    if not formula.reclaimable:
        label = f"reclaimable, by {record.predictor}, at most unused"
        reclaimable = TermLine("reclaimable", label=label)
    elif is_peak_known:
        reclaimable = TermLine("reclaimable", formula.reclaimable)
    else:
        reclaimable = TermLine("reclaimable", label="reclaimable, 0 without a peak")
    peak_label = "prod_peak, with margin and what was not measured"
    return FormulaText(
        heading=f"formula: {name}",
        lines=[
            *map(TermLine, ("allocatable", "allocated", "unused", "unallocated")),
            TermLine("limit", label="limit, the most that the policy allows for Mid"),
            TermLine("prod_peak", label=peak_label)
            if is_peak_known
            else TermLine("prod_peak", unknown=f"{record.predictor} has no peak of Prod"),
            reclaimable,
        ],
        amount=formula.amount,
        values=values,
    )
