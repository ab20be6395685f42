"""Mid: requests of Prod that will not be used, and a share of unrequested capacity.

`FORMULAS` has the published formulas by name: `source` is Koordinator's code, `v1.6` and `v1.3` are
the notes of its releases, `proposal` its design proposal. Static mode overrides all of them.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.overcommit.resource_columns import (
    NodeAmounts,
    PodAmounts,
    Strategies,
    by_node,
    percent_of,
)


class Mid(NamedTuple):
    """The amounts (nodes, 2) and their terms.

    `reclaimable` is unused by Prod as the formula counts it, `unused` is the node's present idle
    capacity, `allocated` the requests of Prod, `unallocated` the rest of the node, and `limit` the
    most that Mid may be.
    """

    amount: IntArray
    reclaimable: IntArray
    unused: IntArray
    allocated: IntArray
    unallocated: IntArray
    limit: IntArray


class Percents(NamedTuple):
    """Parameters of formulas, (nodes,): the margin on the peak of Prod that the peak does not
    contain yet, and the share of Prod's requests that may be offered."""

    margin: IntArray
    reclaim: IntArray


class _Terms(NamedTuple):
    nodes: NodeAmounts
    strategies: Strategies
    percents: Percents
    unused: IntArray
    allocated: IntArray

    @property
    def kept(self) -> IntArray:
        """What the requests of Prod leave of allocatable and of capacity beside processes outside
        of Kubernetes."""
        nodes = self.nodes
        room = np.minimum(nodes.allocatable, nodes.capacity - outside(nodes))
        kept: IntArray = np.maximum(room - self.allocated, 0)
        return kept

    @property
    def limit(self) -> IntArray:
        return percent_of(self.nodes.allocatable, self.strategies.mid_percent)

    @property
    def share(self) -> IntArray:
        return self.strategies.mid_unallocated_percent

    def beside(self, peak: IntArray, of: IntArray) -> IntArray:
        """What `peak` leaves of `of`; 0 if the peak is unknown."""
        known = self.nodes.has_peak[:, None]
        return np.where(known, np.maximum(of - peak, 0), 0)

    @property
    def below_margin(self) -> IntArray:
        """Requests of Prod less its peak with the margin, which is rounded up."""
        peak, margin = self.nodes.prod_peak, self.percents.margin[:, None]
        return self.beside(peak - (-peak * margin) // 100, self.allocated)


def allocated(nodes: int, pods: PodAmounts) -> IntArray:
    """What Prod asked for on each node, (nodes, 2)."""
    return by_node(nodes, pods, pods.request, pods.is_prod & pods.is_listed)


def unmeasured(nodes: int, pods: PodAmounts) -> IntArray:
    """What Prod asked for, (nodes, 2), by pods of which there is no usage: nobody can say yet what
    of it they leave."""
    return by_node(nodes, pods, pods.request, pods.is_prod & pods.is_listed & ~pods.has_usage)


def mid(
    nodes: NodeAmounts,
    allocated: IntArray,
    strategies: Strategies,
    percents: Percents,
    formula: str = "v1.6",
) -> Mid:
    """Compute Mid of each node; `allocated` are the requests of Prod. Raises KeyError for an
    unknown formula."""
    unused = np.where(nodes.has_usage[:, None], np.maximum(nodes.capacity - nodes.usage, 0), 0)
    terms = _Terms(nodes, strategies, percents, unused, allocated)
    found = FORMULAS[formula](terms)
    of_capacity = percent_of(nodes.capacity, strategies.mid_percent)
    static = np.minimum(percent_of(nodes.capacity, strategies.mid_static_percent), of_capacity)
    amount = np.where(strategies.is_static[:, None], static, found.amount)
    return found._replace(amount=amount)


def outside(nodes: NodeAmounts) -> IntArray:
    """Usage or reservation of processes outside of Kubernetes, (nodes, 2), whichever is larger."""
    of: IntArray = np.maximum(nodes.system + nodes.prod_apps, nodes.reserved)
    return of


def _source(terms: _Terms) -> Mid:
    """Koordinator's code: of capacity, and with the share of unallocated below the limit."""
    nodes = terms.nodes
    unallocated = np.maximum(nodes.capacity - outside(nodes) - terms.allocated, 0)
    reclaimable = np.minimum(nodes.reclaimable, terms.unused)
    limit = percent_of(nodes.capacity, terms.strategies.mid_percent)
    amount = np.minimum(reclaimable + percent_of(unallocated, terms.share), limit)
    return Mid(amount, reclaimable, terms.unused, terms.allocated, unallocated, limit)


def _v1_6(terms: _Terms) -> Mid:
    """Koordinator's notes of release 1.6: at most the node's idle capacity."""
    reclaimable = np.minimum(terms.below_margin, terms.unused)
    return _of(terms, reclaimable, percent_of(terms.kept, terms.share))


def _v1_3(terms: _Terms) -> Mid:
    """Koordinator's notes of release 1.3."""
    return _of(terms, terms.below_margin, np.zeros_like(terms.allocated))


def _proposal(terms: _Terms) -> Mid:
    """Koordinator's proposal: a share of Prod's requests, less its peak."""
    return _of(terms, _shared(terms), np.zeros_like(terms.allocated))


def _proposal_unallocated(terms: _Terms) -> Mid:
    """Koordinator's proposal for later: with all unallocated capacity."""
    return _of(terms, _shared(terms), terms.kept)


def _shared(terms: _Terms) -> IntArray:
    of = percent_of(terms.allocated, terms.percents.reclaim[:, None])
    return terms.beside(terms.nodes.prod_peak, of)


def _of(terms: _Terms, reclaimable: IntArray, more: IntArray) -> Mid:
    amount = np.minimum(reclaimable, terms.limit) + more
    return Mid(amount, reclaimable, terms.unused, terms.allocated, terms.kept, terms.limit)


FORMULAS: Final[Mapping[str, Callable[[_Terms], Mid]]] = {
    "proposal": _proposal,
    "proposal-unallocated": _proposal_unallocated,
    "v1.3": _v1_3,
    "v1.6": _v1_6,
    "source": _source,
}
