"""The thresholds above which a node counts as hot, from a DeschedulerConfiguration in force."""

import msgspec

from pipeline.processors.descheduling.descheduler_config import Descheduling
from pipeline.topics.nodes import NodeRecord


def with_hot_nodes(
    record: NodeRecord, descheduling: Descheduling | None, before: NodeRecord | None = None
) -> NodeRecord:
    """Resolve the thresholds in the record of a node: those of the first pool of LowNodeLoad that
    selects it, None if there is no such pool or it has no thresholds.

    Without a configuration, as after a start with an invalid one, and in a pool with an invalid
    value, those of `before` stay, the last published record of the node.
    """
    policy = None if before is None else before.hot_nodes
    if descheduling is not None and descheduling.is_certain:
        low, nodes = descheduling.low_node_load, descheduling.keys.node_selector
        is_selected = nodes is None or nodes.matches(record.labels)
        pool = low.pool_of(record.labels) if low is not None and is_selected else None
        if pool is None:
            policy = None
        elif pool.is_certain:
            policy = pool.hot_node_policy
    return msgspec.structs.replace(record, hot_nodes=policy)
