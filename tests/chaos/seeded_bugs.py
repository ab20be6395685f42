"""One known mistake per guarantee, each of which a chaos run must detect.

A role that runs with one is an ordinary process of the product, with one function replaced.
"""

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from actuators.action_log import Actions
from actuators.cluster import offer_writer
from actuators.node.original_values import OriginalValues
from actuators.rate_limit import RateLimit
from pipeline.agents import apply_windows
from pipeline.agents.apply_windows import Applied
from pipeline.agents.join_agent import JoinCursor
from pipeline.agents.partition_models import PartitionWindow
from pipeline.agents.published_models import PublishedModels
from pipeline.archive.segment_writer import SegmentWriter
from pipeline.extender import filters
from pipeline.extender.candidate_nodes import CandidateNodes
from pipeline.extender.refusals import Refusals
from pipeline.kafka.partition_log import LogRecord
from pipeline.kube.api_client import Api
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.processors.descheduling.cool_downs import Rests
from pipeline.processors.eviction import migration_limits
from pipeline.processors.overcommit.offer_decision import Offer, OfferInputs, offers_now
from pipeline.topics.actions import ActionRecord

CRASH_SECONDS = 40.0
LEAK_BYTES, LEAK_SECONDS = 1 << 20, 0.5
LATE_SECONDS = 45.0

_leaked: list[bytes] = []


def samples_dropped() -> None:
    """The join loses one sample in fifty."""
    join = JoinCursor._join_sample

    def join_most(self: JoinCursor, record: LogRecord) -> Any:
        return None if record.offset % 50 == 49 else join(self, record)

    JoinCursor._join_sample = join_most  # type: ignore[method-assign]


def windows_applied_twice() -> None:
    """The models of even partitions take one window in twenty for two, of which the second ends a
    little later."""
    apply_distinct = apply_windows.apply_distinct

    def apply_some_again(windows: Sequence[PartitionWindow]) -> list[Applied]:
        applied = apply_distinct(windows)
        twice = [
            window
            for window in windows
            if window.offset % 20 == 19 and window.models.ownership.partition % 2 == 0
        ]
        if twice:
            apply_distinct([_a_little_later(window) for window in twice])
        return applied

    apply_windows.apply_distinct = apply_some_again


def _a_little_later(source: PartitionWindow) -> PartitionWindow:
    header = source.window.header
    later = msgspec.structs.replace(header, window_end_ms=header.window_end_ms + 1)
    return source._replace(window=msgspec.structs.replace(source.window, header=later))


def alerts_dropped() -> None:
    """The worker publishes no change of the alerts in odd partitions."""
    publish = PublishedModels.publish_events

    async def publish_some(self: PublishedModels) -> None:
        if self.ownership.partition % 2:
            self.events.clear()
        await publish(self)

    PublishedModels.publish_events = publish_some  # type: ignore[method-assign]


def offers_doubled() -> None:
    """The actuator writes twice what records allow."""

    def doubled(nodes: Sequence[OfferInputs], now: float) -> list[Offer]:
        return [
            offer._replace(amounts=tuple(2 * amount for amount in offer.amounts))
            if max(offer.amounts) > 0
            else offer
            for offer in offers_now(nodes, now)
        ]

    offer_writer.offers_now = doubled  # type: ignore[attr-defined]


def evictions_unlimited() -> None:
    """The evictor does not wait between evictions."""
    RateLimit.seconds_until = lambda *_: 0.0  # type: ignore[method-assign]


def limit_removed(name: str) -> None:
    """The evictor does not know this limit."""
    migration_limits.LIMITS[name] = lambda *_: None


def evictions_by_name() -> None:
    """The evictor names pods by name alone: whatever pod has it is evicted."""
    request = Api.request

    async def request_without_uid(self: Api, *args: Any, body: Any = None, **more: Any) -> bytes:
        if isinstance(body, dict) and body.get("kind") == "Eviction":
            body["deleteOptions"].pop("preconditions")
        return await request(self, *args, body=body, **more)

    Api.request = request_without_uid  # type: ignore[method-assign]


def intentions_unrecorded() -> None:
    """The evictor does not record an eviction before the call."""
    write = Actions.write

    async def write_others(
        self: Actions, action: ActionRecord, partition: int | None = None
    ) -> float | None:
        return None if action.outcome == "intended" else await write(self, action, partition)

    Actions.write = write_others  # type: ignore[method-assign]


def relieved_nodes_unmarked() -> None:
    """The extender treats neither hot nodes nor those that a workload left as a last resort."""

    def pass_all(nodes: CandidateNodes, *_: Any) -> Refusals:
        return Refusals.none(len(nodes))

    for name in ("hot", "left"):
        setattr(filters, name, pass_all)


def moves_forgotten() -> None:
    """No node and no workload rests after an eviction: the planner plans again at once."""
    Rests.of_node = lambda *_: None  # type: ignore[method-assign]
    Rests.of_pod = lambda *_: None  # type: ignore[method-assign]


def late_restart() -> None:
    """From its second start on, the role does nothing for longer than it may."""
    started = Path("started-before")
    if started.exists():
        time.sleep(LATE_SECONDS)
    started.touch()


def leak() -> None:
    """The role keeps two megabytes more each second."""

    def grow() -> None:
        for number in itertools.count():
            _leaked.append(bytes([number % 255 + 1]) * LEAK_BYTES)
            time.sleep(LEAK_SECONDS)

    threading.Thread(target=grow, daemon=True).start()


def crash() -> None:
    """The role ends some time after each start."""
    timer = threading.Timer(CRASH_SECONDS, os._exit, [1])
    timer.daemon = True
    timer.start()


def originals_unsaved() -> None:
    """A node actuator keeps in memory alone what cgroups had before."""
    OriginalValues._write = lambda *_: None  # type: ignore[method-assign]


def windows_unarchived() -> None:
    """The archive loses one window in fifty."""
    add = SegmentWriter.add

    def add_most(self: SegmentWriter, record: LoggedWindow) -> None:
        if record.offset % 50 != 49:
            add(self, record)

    SegmentWriter.add = add_most  # type: ignore[method-assign]


BUGS: Mapping[str, Callable[[], None]] = {
    "samples_dropped": samples_dropped, "windows_applied_twice": windows_applied_twice,
    "alerts_dropped": alerts_dropped,
    "offers_doubled": offers_doubled, "evictions_unlimited": evictions_unlimited,
    "evictions_by_name": evictions_by_name, "intentions_unrecorded": intentions_unrecorded,
    "originals_unsaved": originals_unsaved, "windows_unarchived": windows_unarchived,
    "late_restart": late_restart, "leak": leak, "crash": crash,
    "relieved_nodes_unmarked": relieved_nodes_unmarked, "moves_forgotten": moves_forgotten,
    **{f"without {name}": partial(limit_removed, name) for name in migration_limits.LIMITS},
}  # fmt: skip
