"""The thresholds above which a node counts as hot, from a DeschedulerConfiguration in force."""

import msgspec

from pipeline.processors.descheduling.descheduler_config import Descheduling
from pipeline.processors.descheduling.strict_reading import NOTHING
from pipeline.topics.nodes import NodeRecord


def with_hot_nodes(
    record: NodeRecord, descheduling: Descheduling | None, before: NodeRecord | None = None
) -> NodeRecord:
    """Resolve the thresholds in the record of a node: those of the first pool of LowNodeLoad that
    selects it, None if there is no such pool or it has no thresholds.

    Without a configuration, as after a start with an invalid one, with an invalid selector of all
    nodes, and in a pool with an invalid value, those of `before` stay, the last published record of
    the node.
    """
    policy = None if before is None else before.hot_nodes
    if descheduling is not None and NOTHING not in descheduling.node_selectors:
        low, selectors = descheduling.low_node_load, descheduling.node_selectors
        is_selected = all(selector.matches(record.labels) for selector in selectors)
        pool = low.pool_of(record.labels) if low is not None and is_selected else None
        if pool is None:
            policy = None
        elif pool.is_certain:
            policy = pool.hot_node_policy
    return msgspec.structs.replace(record, hot_nodes=policy)
