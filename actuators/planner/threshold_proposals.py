"""Export the thresholds that three sigma proposes for node pools, as a metric."""

from typing import Final

from pipeline.metrics import gauge
from pipeline.processors.hot_nodes.threshold_advice import advise
from pipeline.table import Table
from pipeline.table.node_histories import HistoryStore, pool_histories

PROPOSED = gauge(
    "planner_proposed_threshold_ratio",
    "High threshold that mean + 3 sigma of the samples that models learn, by default the p90 of "
    "windows, proposes for a rule of a node pool, as a share of allocatable, or of it above the "
    "mean with useDeviationThresholds; missing without a proposal.",
    ["pool", "rule"],
)  # fmt: skip

PROPOSAL_SECONDS: Final = 60.0
MOST_POOLS: Final = 100
"""Pools in the metric, those with the most nodes."""
_FORGOTTEN_SECONDS: Final = 86_400.0


def set_proposals(table: Table, store: HistoryStore, now: float, expiration_seconds: float) -> None:
    """Set the metric to what is proposed now, from a table and a store that have caught up."""
    store.forget(now - _FORGOTTEN_SECONDS)
    pools = list(pool_histories(table, store, now, expiration_seconds))
    pools.sort(key=lambda pool: (-len(pool.nodes.is_fresh), pool.name))
    proposals = [
        (pool.name, each.rule, each.proposed_high_percent)
        for pool in pools[:MOST_POOLS]
        for each in advise(pool.nodes, pool.present)
        if each.proposed_high_percent is not None
    ]
    PROPOSED.clear()
    for pool_name, rule, percent in proposals:
        PROPOSED.labels(pool_name, rule).set(percent / 100)
