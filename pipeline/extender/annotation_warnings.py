"""What Nodes' annotations say that the extender cannot use: told in its log.

Owes the rest: each annotation once, and again when it is another. It looks at what the table found
when it took the node's record, and no question waits for it.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NoReturn

from pipeline.clock import Clock
from pipeline.logs import get_logger
from pipeline.processors.loadaware.node_thresholds import problem
from pipeline.table import Table
from pipeline.table.node_anomalies import unusable_thresholds

LOOK_EVERY_SECONDS: Final = 5.0
_NAMED: Final = 3

_log = get_logger(__name__)


async def keep_telling(table: Table, clock: Clock) -> NoReturn:
    """Tell of what comes, until cancelled."""
    told: Mapping[str, str] = {}
    while True:
        told = tell(table, told)
        await clock.sleep(LOOK_EVERY_SECONDS)


def tell(table: Table, told: Mapping[str, str]) -> Mapping[str, str]:
    """Tell of the annotations of thresholds that are of no use and were not `told`; gives what is
    told by now, by node. Nodes of which the same is wrong share a line."""
    found = unusable_thresholds(table)
    nodes_of: dict[str | None, list[str]] = defaultdict(list)
    for node, annotation in found.items():
        if told.get(node) != annotation:
            nodes_of[problem(annotation)].append(node)
    for reason, nodes in nodes_of.items():
        _log.warning(
            "usage thresholds of nodes are not all in force: those of the settings fill in",
            reason=reason,
            count=len(nodes),
            nodes=nodes[:_NAMED],
        )
    return found
