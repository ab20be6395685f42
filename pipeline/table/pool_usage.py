"""Policies and compared usage of the nodes of the state table that need the mean of their pool."""

from typing import NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.hot_nodes.pool_means import NEVER
from pipeline.table.state_table import Table
from pipeline.topics.alerts import RULES
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.node_state import NodeStateRecord

_UNKNOWN = [np.nan] * len(RULES)


class PoolUsage(NamedTuple):
    """Nodes whose thresholds are distances from a mean: their policies (n), the compared usage in
    `percents` (n, rules), NaN unknown, and the ends of their last windows (n,), `NEVER` without
    one."""

    policies: list[HotNodePolicy]
    percents: FloatArray
    end_ms: IntArray


def pool_usage(table: Table, now: float, expiration_seconds: float) -> PoolUsage:
    """The usage of these nodes. Usage older than `expiration_seconds` is unknown."""
    rows, policies, states = [], [], list[NodeStateRecord | None]()
    for row, records in enumerate(table.rows()[1]):
        policy = None if records.node is None else records.node.hot_nodes
        if policy is not None and policy.use_deviation_thresholds:
            rows.append(row)
            policies.append(policy)
            states.append(records.state)
    percents = np.array(
        [
            _UNKNOWN
            if state is None
            else [state.compared_percent.get(rule, np.nan) for rule in RULES]
            for state in states
        ]
    ).reshape(len(rows), len(RULES))
    places = np.array(rows, np.intp)
    percents[~table.fresh(places, now, expiration_seconds)] = np.nan
    ends = table["as_of_seconds"][places] * 1000
    return PoolUsage(
        policies, percents, np.where(np.isnan(ends), NEVER, np.rint(ends)).astype(np.int64)
    )
