"""Batch: the capacity of a node that usage or requests of Prod and Mid leave.

Formulas and names of the policies are those of
[Koordinator](https://koordinator.sh/docs/architecture/resource-model). `batch` computes the amount
and its terms, `formula_text` shows the same formula with its names. A new term needs a place in
both, a field of `BatchTerms` (`pipeline/topics/node_resources.py`), and, if operators set it, a key
of the policy (docs/how-to/add-a-policy-key.md).

The term `margin` is Koordinator's: the part of capacity above the reclaim threshold, which is never
offered. It is not the safety margin, by which predictors raise peaks, and not the node's buffer
(`buffer_percent`), which `node_offers` subtracts from Mid and Batch afterwards.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.resource_pairs import per_resource
from pipeline.processors.overcommit.resource_columns import (
    NO_LIMIT,
    NodeAmounts,
    PodAmounts,
    PolicyColumns,
    percent_of,
    sum_by_node,
)
from pipeline.processors.overcommit.tier import FormulaText, TermLine, Tier
from pipeline.topics.node_resources import NodeResourcesRecord

TAKEN_BY_POLICY: Final[Mapping[str, str]] = {
    "request": "reserved + requested",
    "maxUsageRequest": "outside + larger",
    "usage": "outside + used",
}
"""What Prod, Mid and processes outside of Kubernetes take, by calculate policy."""

AMOUNT: Final = "max(capacity - margin - taken - promised, 0)"
LIMITED: Final = f"min({AMOUNT}, trunc(capacity * percent / 100))"


def batch(
    nodes: NodeAmounts, pods: PodAmounts, policies: PolicyColumns, mid: IntArray | None = None
) -> Tier:
    """Compute Batch of each node; `mid` (nodes, 2) is the amount promised to Mid.

    Idle capacity is promised only once, and first to Mid, because pods of Batch yield to pods of
    Mid anyway. The policy already counts usage or requests of Mid's pods, so that only the rest of
    `mid` is subtracted, as the term `promised`. Without `mid` both tiers are computed
    independently, as Koordinator does.

    A pod of unknown usage counts its request: new pods must not look idle. Koordinator leaves them
    out under maxUsageRequest, which offers their capacity for a while. An LSE pod counts its
    request of cpu, because nobody else may use its CPUs while they idle. A pod that is not listed
    any more counts its usage, which is part of the window.
    """
    pods = pods.select(~pods.is_low & (pods.is_listed | pods.has_usage))
    listed = pods.is_listed
    usage = np.where(per_resource(pods.has_usage), pods.usage, pods.request)
    used = usage.copy()
    exclusive = pods.is_lse & listed
    used[exclusive, 0] = pods.request[exclusive, 0]
    larger = np.maximum(usage, np.where(per_resource(listed), pods.request, 0))
    by_request, by_larger = _policies(policies)

    def sums(amounts: IntArray, counted: BoolArray | None = None) -> IntArray:
        return sum_by_node(len(nodes.capacity), pods, amounts, counted)

    def by_policy(request: IntArray, larger: IntArray, usage: IntArray) -> IntArray:
        return np.select([by_request, by_larger], [request, larger], usage)

    terms = {
        "capacity": nodes.capacity,
        "margin": percent_of(nodes.capacity, 100 - policies.pair("{}_reclaim_threshold_percent")),
        "outside": np.maximum(nodes.system + nodes.prod_apps + nodes.mid_apps, nodes.reserved),
        "reserved": nodes.reserved,
        "used": sums(used),
        "requested": sums(pods.request, listed),
        "larger": sums(larger),
    }
    taken = by_policy(
        terms["reserved"] + terms["requested"],
        terms["outside"] + terms["larger"],
        terms["outside"] + terms["used"],
    )
    terms["promised"] = np.zeros_like(taken)
    if mid is not None:
        is_mid = pods.class_code == CLASS_CODES["mid"]
        counted = by_policy(
            sums(pods.request, listed & is_mid), sums(larger, is_mid), sums(used, is_mid)
        )
        terms["promised"] = np.maximum(mid - counted, 0)
    amount = np.maximum(nodes.capacity - terms["margin"] - taken - terms["promised"], 0)
    percent = policies.pair("batch_{}_threshold_percent")
    limited = np.minimum(amount, percent_of(nodes.capacity, percent))
    return Tier(np.where(percent == NO_LIMIT, amount, limited), terms)


def formula_text(
    record: NodeResourcesRecord, resource: str, terms: Mapping[str, float]
) -> FormulaText:
    """The formula of Batch for `resource` (cpu or memory) of a record with these `terms`."""
    policy: str = getattr(record.strategy, f"{resource}_calculate_policy")
    # As in `_policies`.
    if policy not in TAKEN_BY_POLICY or (policy == "request" and resource == "cpu"):
        policy = "usage"
    summands = TAKEN_BY_POLICY[policy].split(" + ")
    percent: int | None = getattr(record.strategy, f"batch_{resource}_threshold_percent")
    return FormulaText(
        heading=f"policy: {policy}",
        lines=[
            *map(TermLine, ("capacity", "margin", "promised", *summands)),
            TermLine("taken", TAKEN_BY_POLICY[policy]),
        ],
        amount=AMOUNT if percent is None else LIMITED,
        values={**terms, "taken": sum(map(terms.__getitem__, summands)), "percent": percent or 0},
    )


def _policies(policies: PolicyColumns) -> tuple[BoolArray, BoolArray]:
    """Where requests count, and where the larger of usage and request, (nodes, 2); elsewhere usage.
    Only memory may be offered by requests. An unknown policy counts as usage."""
    policy = policies.pair("{}_calculate_policy")
    by_request: BoolArray = policy == "request"
    by_request[:, 0] = False
    return by_request, policy == "maxUsageRequest"
