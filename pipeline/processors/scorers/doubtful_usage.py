"""Cap the scores of nodes of doubtful usage: a scorer must not prefer what may not be so."""

import numpy as np

from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.scorers.scorer import NodesView


def cap_doubtful(nodes: NodesView, scores: IntArray, expiration_seconds: float) -> IntArray:
    """The scores of a scorer that goes by usage, (nodes,): those of nodes of doubtful usage are at
    most the lowest of all nodes of certain, fresh usage; unchanged if there are none.

    Usage is doubtful where its series is (`is_doubtful` of a node state), and where cpu or memory
    of the last window is unknown: predicted peaks and averages may be lower than usage then.
    """
    doubtful = nodes.cached("doubtful", lambda: _is_doubtful(nodes))
    if not np.count_nonzero(doubtful):
        return scores
    certain = ~doubtful & nodes.is_fresh(expiration_seconds)
    lowest = scores[certain].min(initial=np.iinfo(np.int64).max)
    return np.where(doubtful, np.minimum(scores, lowest), scores)


def _is_doubtful(nodes: NodesView) -> BoolArray:
    is_missing = np.logical_or.reduce(np.isnan(nodes.usage("usage", ("cpu", "memory"))), axis=1)
    is_doubtful = nodes.column("doubtful_usage").astype(np.bool_)
    result: BoolArray = is_doubtful | (is_missing & ~nodes.is_new())
    return result
