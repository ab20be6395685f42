"""Report outages of the data behind the table: checks at `/readyz?verbose`, and lines of the log.

An extender in an outage stays ready: it decides by requests, and refusing requests would stop the
cluster.
"""

from typing import NoReturn

import msgspec

from pipeline.clock import Clock
from pipeline.extender import limits
from pipeline.logs import get_logger
from pipeline.table import FeedState
from pipeline.table.data_outages import DataOutages

_log = get_logger(__name__)


class Check(msgspec.Struct, frozen=True):
    """One part that decisions depend on.

    name: Name of the part.
    ok: Whether it works.
    text: Its state in words.
    """

    name: str
    ok: bool
    text: str


def checks(outages: DataOutages, state: FeedState, now: float) -> tuple[Check, ...]:
    """The state of table, broker, usage and watcher at `now`."""
    usage, trouble = outages.usage(now), outages.watcher(now)
    silent = "has not answered yet" if state.contact is None else "does not answer"
    broker = "answers" if state.connected else silent
    alive = "alive" if outages.has_watcher else "none: another source writes the nodes"
    watcher = Check("watcher", trouble is None, str(trouble or alive))
    if state.missing:
        watcher = Check("watcher", False, f"unknown: {_missing_text(state)}")
    return (
        Check("table", state.caught_up, state.message),
        Check("broker", state.connected, broker),
        Check("usage", usage is None, str(usage or "fresh")),
        watcher,
    )


def _missing_text(state: FeedState) -> str:
    return f"{' and '.join(state.missing)} is missing: run `springtide topics apply`"


async def log_outages(outages: DataOutages, clock: Clock) -> NoReturn:
    """Log the begin and the end of each outage, for ever."""
    had_usage, reported = True, None
    while True:
        now = clock.now()
        usage, trouble = outages.usage(now), outages.watcher(now)
        if (usage is None) != had_usage:
            had_usage = usage is None
            if usage is None:
                _log.info("outage of usage has ended")
            else:
                _log.warning("outage of usage: these nodes are judged by requests alone",
                             lost=usage.lost, nodes=usage.nodes,
                             hint="check exporters, Kafka and workers")  # fmt: skip
        if (kind := trouble and trouble.is_dead) != reported:
            reported = kind
            if trouble is None:
                _log.info("watcher is back")
            else:
                kind_text = "dead" if trouble.is_dead else "behind"
                _log.warning(f"watcher is {kind_text}: placed pods count until it is back",
                             reason=str(trouble),
                             hint="start or update a watcher, or check its log")  # fmt: skip
        await clock.sleep(limits.OUTAGE_CHECK_SECONDS)
