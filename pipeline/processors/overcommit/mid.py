"""Mid: what Prod asked for and will not use, and a share of what nobody asked for.

`FORMULAS` are the ways to work it out that were published, by name; `source` is what Koordinator's
code does (colocation 10, 16), `v1.6` what the notes to its release say. Static mode comes over all
of them.
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
    """The amounts (nodes, 2), and the terms that they come from.

    `reclaimable` is what Prod leaves unused as the formula has it, `unused` what the node does not
    use now, `allocated` what Prod asked for, `unallocated` what is left of the node beside that;
    `limit` is the most that Mid may be.
    """

    amount: IntArray
    reclaimable: IntArray
    unused: IntArray
    allocated: IntArray
    unallocated: IntArray
    limit: IntArray


class Percents(NamedTuple):
    """What formulas are set by, (nodes,): the margin upon the peak of Prod, where it is not in it
    already, and the share of its requests that may be handed on."""

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
        """What the requests of Prod leave of allocatable, and of what is not outside of Kubernetes:
        the published formulas promise that, too."""
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
        """What `peak` leaves of `of`; nothing where the peak is unknown."""
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
    """What each node has for Mid, of which Prod asked for `allocated`, whoever predicts its peak.
    Raises KeyError for a formula that is none of `FORMULAS`."""
    unused = np.where(nodes.has_usage[:, None], np.maximum(nodes.capacity - nodes.usage, 0), 0)
    terms = _Terms(nodes, strategies, percents, unused, allocated)
    found = FORMULAS[formula](terms)
    of_capacity = percent_of(nodes.capacity, strategies.mid_percent)
    static = np.minimum(percent_of(nodes.capacity, strategies.mid_static_percent), of_capacity)
    amount = np.where(strategies.is_static[:, None], static, found.amount)
    return found._replace(amount=amount)


def outside(nodes: NodeAmounts) -> IntArray:
    """What goes to those outside of Kubernetes, (nodes, 2): what they use, or what is reserved."""
    of: IntArray = np.maximum(nodes.system + nodes.prod_apps, nodes.reserved)
    return of


def _source(terms: _Terms) -> Mid:
    """As the code has it: of capacity, and with the share of the unallocated below the limit."""
    nodes = terms.nodes
    unallocated = np.maximum(nodes.capacity - outside(nodes) - terms.allocated, 0)
    reclaimable = np.minimum(nodes.reclaimable, terms.unused)
    limit = percent_of(nodes.capacity, terms.strategies.mid_percent)
    amount = np.minimum(reclaimable + percent_of(unallocated, terms.share), limit)
    return Mid(amount, reclaimable, terms.unused, terms.allocated, unallocated, limit)


def _v1_6(terms: _Terms) -> Mid:
    """As the notes to release 1.6 have it: never more than the node does not use (K16-31, 32)."""
    reclaimable = np.minimum(terms.below_margin, terms.unused)
    return _of(terms, reclaimable, percent_of(terms.kept, terms.share))


def _v1_3(terms: _Terms) -> Mid:
    """As the notes to release 1.3 have it (K13-24)."""
    return _of(terms, terms.below_margin, np.zeros_like(terms.allocated))


def _proposal(terms: _Terms) -> Mid:
    """As it was proposed: a share of what Prod asked for, less its peak (NP-15)."""
    return _of(terms, _shared(terms), np.zeros_like(terms.allocated))


def _proposal_unallocated(terms: _Terms) -> Mid:
    """As it was proposed for later: and all that nobody asked for (NP-16)."""
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
