"""Compute what nodes have for Mid and Batch, with all terms, as records of `springtide.resources`.

Inputs are windows and the predictors' peaks of Prod after them. Idle capacity is promised once, and
first to Mid, unless a node's strategy sets otherwise. The buffer is taken from both tiers.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.join.window_batch import WindowBatch
from pipeline.processors.overcommit import batch as batch_tier
from pipeline.processors.overcommit.batch import Batch
from pipeline.processors.overcommit.mid import FORMULAS, Mid, Percents, allocated, mid, unmeasured
from pipeline.processors.overcommit.resource_columns import (
    NodeAmounts,
    PodAmounts,
    Strategies,
    percent_of,
    strategies,
)
from pipeline.processors.overcommit.window_columns import (
    Prod,
    is_known,
    nodes_of,
    pods_of,
    with_prod,
)
from pipeline.times import format_time
from pipeline.topics.node_resources import BatchTerms, MidTerms, NodeResourcesRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import Resources

_USUAL_FORMULA = "v1.6"


class NodeOffers(NamedTuple):
    """The amounts of n nodes less the buffer, and the terms.

    `mid_amount`, `mid_least` (Mid by the most careful predictor) and `batch_amount` are (nodes, 2);
    `known` (nodes,) marks the nodes with valid amounts.
    """

    known: BoolArray
    nodes: NodeAmounts
    mid: Mid
    batch: Batch
    mid_amount: IntArray
    mid_least: IntArray
    batch_amount: IntArray
    mid_buffer: IntArray
    batch_buffer: IntArray


def offers(batch: WindowBatch, decided: Prod, others: Sequence[Prod]) -> NodeOffers:
    """Compute the amounts of nodes after these windows, one for each node with colocation.

    `decided` is Prod by the deciding predictor of each node, `others` Prod by each predictor, NaN
    where unknown. A predictor that decides for all nodes may be missing in `others`.
    """
    of = [window.node.overcommit or Overcommit() for window in batch.windows]
    columns, pods = strategies(of), pods_of(batch)
    nodes = nodes_of(batch, decided)
    asked = allocated(len(batch), pods)
    nodes = _with_unmeasured(nodes, pods)
    found = _mid(nodes, asked, columns, of)
    mid_buffer = percent_of(found.amount, columns.buffer_percent)
    offered = found.amount - mid_buffer
    least = offered
    for prod in others:
        own = _with_unmeasured(with_prod(nodes, prod), pods)
        amount = _mid(own, asked, columns, of).amount
        amount = amount - percent_of(amount, columns.buffer_percent)
        least = np.where(own.has_peak[:, None], np.minimum(least, amount), least)
    promised = np.where(columns.promises_once[:, None], offered, 0)
    rest = batch_tier.batch(nodes, pods, columns, promised)
    batch_buffer = percent_of(rest.amount, columns.buffer_percent)
    return NodeOffers(
        known=is_known(batch),
        nodes=nodes,
        mid=found,
        batch=rest,
        mid_amount=offered,
        mid_least=least,
        batch_amount=rest.amount - batch_buffer,
        mid_buffer=mid_buffer,
        batch_buffer=batch_buffer,
    )


def _with_unmeasured(nodes: NodeAmounts, pods: PodAmounts) -> NodeAmounts:
    """Add the requests of unmeasured pods to the peak of Prod: a pod that waits for its image must
    not count as one that leaves all of its request."""
    more = unmeasured(len(nodes.capacity), pods)
    return nodes._replace(prod_peak=nodes.prod_peak + more)


def _mid(nodes: NodeAmounts, asked: IntArray, columns: Strategies, of: Sequence[Overcommit]) -> Mid:
    """Mid of each node by the formula of its strategy. An unknown formula, as in a record of a
    newer release, counts as the default."""
    names = [each.mid_formula if each.mid_formula in FORMULAS else _USUAL_FORMULA for each in of]
    # The peak already contains the margin.
    percents = Percents(np.zeros(len(of), np.int64), columns.mid_reclaim_percent)
    first, *more = dict.fromkeys(names)
    found = mid(nodes, asked, columns, percents, first)
    for name in more:
        at = np.array([one == name for one in names])[:, None]
        own = mid(nodes, asked, columns, percents, name)
        found = Mid(*(np.where(at, a, b) for a, b in zip(own, found, strict=True)))
    return found


def records(
    batch: WindowBatch,
    found: NodeOffers,
    predictors: Sequence[str],
    positions: Sequence[Mapping[str, int]],
) -> list[NodeResourcesRecord]:
    """Make the record of each node; `positions` have generation, offset and epoch."""
    nodes, of_mid, of_batch = found.nodes, found.mid, found.batch
    columns = [
        _all(column)
        for column in (
            found.mid_amount, found.mid_least, found.batch_amount,
            nodes.allocatable, of_mid.allocated, nodes.prod_peak, of_mid.reclaimable,
            of_mid.unused, of_mid.unallocated, of_mid.limit, found.mid_buffer,
            nodes.capacity, of_batch.margin, of_batch.outside, of_batch.reserved, of_batch.used,
            of_batch.requested, of_batch.larger, of_batch.promised, found.batch_buffer,
        )
    ]  # fmt: skip
    made = []
    for window, known, has_peak, predictor, at, (mid_, least, batch_, *terms) in zip(
        batch.windows, found.known.tolist(), nodes.has_peak.tolist(), predictors, positions,
        zip(*columns, strict=True), strict=True,
    ):  # fmt: skip
        of_node = MidTerms(**dict(zip(MidTerms.__struct_fields__, terms, strict=False)))
        if not has_peak:
            of_node = msgspec.structs.replace(of_node, prod_peak=Resources())
        rest = terms[len(MidTerms.__struct_fields__) :]
        made.append(
            NodeResourcesRecord(
                node=window.header.node,
                as_of=format_time(window.header.window_end_ms / 1000),
                **at,
                strategy=window.node.overcommit or Overcommit(),
                predictor=predictor,
                window_seconds=(window.header.window_end_ms - window.header.window_start_ms) / 1000,
                simulated=window.header.simulated,
                mid=mid_ if known else None,
                mid_lower_bound=least if known else None,
                batch=batch_ if known else None,
                mid_terms=of_node,
                batch_terms=BatchTerms(
                    **dict(zip(BatchTerms.__struct_fields__, rest, strict=True))
                ),
            )
        )
    return made


def _all(column: IntArray) -> list[Resources]:
    return [Resources(cpu_millicores=cpu, memory_bytes=memory) for cpu, memory in column.tolist()]
