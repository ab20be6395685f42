"""Compute what nodes have for Mid and Batch, with all terms, as records of `springtide.resources`.

Inputs are windows and the predictors' peaks of Prod after them. Nodes whose policies name the same
formula are computed together, because a call costs hardly more for many nodes than for one. Mid is
computed before Batch: idle capacity is promised once, first to Mid, unless the policy of the node
says otherwise. The buffer is subtracted last, so that it shrinks both tiers by its percentage.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.processors.overcommit.batch import batch as compute_batch
from pipeline.processors.overcommit.mid import allocated, formula_in_force, unmeasured
from pipeline.processors.overcommit.mid import mid as compute_mid
from pipeline.processors.overcommit.resource_columns import (
    NodeAmounts,
    PodAmounts,
    PolicyColumns,
    percent_of,
)
from pipeline.processors.overcommit.tier import Tier
from pipeline.processors.overcommit.window_columns import (
    Prod,
    has_valid_amounts,
    node_amounts,
    pod_amounts,
    with_prod,
)
from pipeline.times import format_time
from pipeline.topics.node_resources import BatchTerms, MidTerms, NodeResourcesRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import Resources

TermsT = TypeVar("TermsT", MidTerms, BatchTerms)


class NodeOffers(NamedTuple):
    """Mid and Batch of n nodes less the buffer, which is one of their terms.

    `mid_lower_bound` (nodes, 2) is the smallest Mid of all predictors, which is offered while the
    record is late. `known` and `has_peak` (nodes,) mark the nodes with valid amounts, and with a
    peak of Prod.
    """

    known: BoolArray
    has_peak: BoolArray
    mid: Tier
    mid_lower_bound: IntArray
    batch: Tier


def offers(batch: WindowBatch, decided: Prod, others: Sequence[Prod]) -> NodeOffers:
    """Compute the offers of nodes after these windows, one window for each node with colocation.

    `decided` is Prod by the deciding predictor of each node, `others` Prod by each predictor, NaN
    where unknown. A predictor that decides for all nodes may be missing in `others`.
    """
    overcommit = [window.node.overcommit or Overcommit() for window in batch.windows]
    formulas = list(map(formula_in_force, overcommit))
    policies, pods = PolicyColumns(overcommit), pod_amounts(batch)
    requests, unmeasured_requests = allocated(len(batch), pods), unmeasured(len(batch), pods)

    nodes = _with_unmeasured(node_amounts(batch, decided), unmeasured_requests)
    mid, of_batch = mid_and_batch(nodes, pods, requests, policies, formulas)
    lower_bound = mid.amount
    for prod in others:
        other = _with_unmeasured(with_prod(nodes, prod), unmeasured_requests)
        smaller = np.minimum(lower_bound, _mid(other, requests, policies, formulas).amount)
        lower_bound = np.where(other.has_peak[:, None], smaller, lower_bound)
    return NodeOffers(
        known=has_valid_amounts(batch),
        has_peak=nodes.has_peak,
        mid=mid,
        mid_lower_bound=lower_bound,
        batch=of_batch,
    )


def mid_and_batch(
    nodes: NodeAmounts,
    pods: PodAmounts,
    requests: IntArray,
    policies: PolicyColumns,
    formulas: Sequence[str],
) -> tuple[Tier, Tier]:
    """Mid and Batch of each node less the buffer; `requests` (nodes, 2) are those of Prod. The peak
    in `nodes` includes the requests of pods without usage."""
    mid = _mid(nodes, requests, policies, formulas)
    promised = np.where(policies.pair("promise_once"), mid.amount, 0)
    return mid, _without_buffer(compute_batch(nodes, pods, policies, promised), policies)


def _mid(
    nodes: NodeAmounts, requests: IntArray, policies: PolicyColumns, formulas: Sequence[str]
) -> Tier:
    return _without_buffer(_mid_by_formula(nodes, requests, policies, formulas), policies)


def _with_unmeasured(nodes: NodeAmounts, requests: IntArray) -> NodeAmounts:
    """Add the requests of unmeasured pods to the peak of Prod: a pod that waits for its image must
    not count as one that leaves all of its request."""
    return nodes._replace(prod_peak=nodes.prod_peak + requests)


def _without_buffer(tier: Tier, policies: PolicyColumns) -> Tier:
    buffer = percent_of(tier.amount, policies.pair("buffer_percent"))
    return Tier(tier.amount - buffer, {**tier.terms, "buffer": buffer})


def _mid_by_formula(
    nodes: NodeAmounts, requests: IntArray, policies: PolicyColumns, formulas: Sequence[str]
) -> Tier:
    """Mid of each node by its formula. Each formula in use is computed for all nodes."""
    first, *others = dict.fromkeys(formulas)
    tier = compute_mid(nodes, requests, policies, first)
    for formula in others:
        is_own = np.array([name == formula for name in formulas])[:, None]
        own = compute_mid(nodes, requests, policies, formula)
        terms = {name: np.where(is_own, own.terms[name], tier.terms[name]) for name in own.terms}
        tier = Tier(np.where(is_own, own.amount, tier.amount), terms)
    return tier


def records(
    batch: WindowBatch,
    offers: NodeOffers,
    predictors: Sequence[str],
    positions: Sequence[Mapping[str, int]],
) -> list[NodeResourcesRecord]:
    """Make the record of each node; `positions` have generation, offset and epoch. Offers of a node
    with unknown amounts are None, which is not an offer of 0."""
    known, has_peak = offers.known.tolist(), offers.has_peak.tolist()
    mid, lower_bound = _resources(offers.mid.amount), _resources(offers.mid_lower_bound)
    batch_amount = _resources(offers.batch.amount)
    mid_terms, batch_terms = (
        _terms(MidTerms, offers.mid, known),
        _terms(BatchTerms, offers.batch, known),
    )
    return [
        NodeResourcesRecord(
            node=window.header.node,
            as_of=format_time(window.header.window_end_ms / 1000),
            **position,
            strategy=window.node.overcommit or Overcommit(),
            predictor=predictor,
            window_seconds=(window.header.window_end_ms - window.header.window_start_ms) / 1000,
            simulated=window.header.simulated,
            mid=mid[i] if known[i] else None,
            mid_lower_bound=lower_bound[i] if known[i] else None,
            batch=batch_amount[i] if known[i] else None,
            mid_terms=mid_terms[i]
            if has_peak[i]
            else msgspec.structs.replace(mid_terms[i], prod_peak=Resources()),
            batch_terms=batch_terms[i],
        )
        for i, (window, predictor, position) in enumerate(
            zip(batch.windows, predictors, positions, strict=True)
        )
    ]


def _terms(kind: type[TermsT], tier: Tier, known: Sequence[bool]) -> list[TermsT]:
    """The terms of each node. The buffer of an unknown offer is unknown: nothing is held back."""
    columns = map(_resources, tier.terms.values())
    nodes = [
        kind(**dict(zip(tier.terms, amounts, strict=True)))
        for amounts in zip(*columns, strict=True)
    ]
    return [
        terms if is_known else msgspec.structs.replace(terms, buffer=Resources())
        for terms, is_known in zip(nodes, known, strict=True)
    ]


def _resources(column: IntArray) -> list[Resources]:
    return [Resources(cpu_millicores=cpu, memory_bytes=memory) for cpu, memory in column.tolist()]
