"""Log invalid usage thresholds in annotations of Nodes, once per annotation.

The table validates them when it takes the record of a node, so no request waits for this.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NoReturn

from pipeline.clock import Clock
from pipeline.extender import limits
from pipeline.logs import get_logger
from pipeline.processors.loadaware.node_thresholds import problem
from pipeline.table import Table
from pipeline.table.node_anomalies import invalid_thresholds

_NODES_NAMED: Final = 3

_log = get_logger(__name__)


async def watch_annotations(table: Table, clock: Clock) -> NoReturn:
    """Log invalid annotations as they appear, until cancelled."""
    logged: Mapping[str, str] = {}
    while True:
        logged = log_invalid_thresholds(table, logged)
        await clock.sleep(limits.ANNOTATION_CHECK_SECONDS)


def log_invalid_thresholds(table: Table, logged: Mapping[str, str]) -> Mapping[str, str]:
    """Log the invalid annotations that are not among `logged` (by node), one line per problem.
    Returns all that are invalid now."""
    annotations = invalid_thresholds(table)
    nodes_by_problem: dict[str | None, list[str]] = defaultdict(list)
    for node, annotation in annotations.items():
        if logged.get(node) != annotation:
            nodes_by_problem[problem(annotation)].append(node)
    for reason, nodes in nodes_by_problem.items():
        _log.warning(
            "invalid usage thresholds of nodes: those of the settings apply instead",
            reason=reason,
            count=len(nodes),
            nodes=nodes[:_NODES_NAMED],
        )
    return annotations
