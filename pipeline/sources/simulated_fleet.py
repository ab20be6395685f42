"""Publish a fleet of simulated nodes to the topics, for the demo and for load tests.

Event time starts hours back and catches up with the clock in longer windows, as fast as the broker
accepts records. Then it follows the clock. No window is published before it has ended. Samples are
marked as simulated. Nodes and pods have the source `fleet`, separate from other sources.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pipeline.clock import Clock
from pipeline.errors import UsageError
from pipeline.kafka.producer import Producer
from pipeline.kafka.topic_admin import require_topics
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.settings import KafkaSettings, Settings
from pipeline.sources.compacted_writer import (
    Entry,
    ProducerFactory,
    difference,
    node_entry,
    open_producer,
    pod_entry,
    read_back,
    write,
)
from pipeline.sources.simulated_nodes import MAX_WINDOW_SECONDS, SimulatedNode
from pipeline.times import format_time
from pipeline.topics.pods import pod_key
from pipeline.topics.registry import NODES, PODS, SAMPLES
from pipeline.topics.samples import encode_samples

SOURCE: Final = "fleet"
MAX_NODES: Final = 100_000

_DAY_SECONDS = 86_400
_HISTORY_WINDOW_SECONDS = 300
# Simulating and encoding a node takes 1-2 ms; other tasks must run in between.
_NODES_PER_BATCH = 25
_LOG_INTERVAL_SECONDS = 5.0
_MAX_SLEEP_SECONDS = 1.0

BEHIND = gauge("fleet_behind_seconds", "Time that the event time of the simulated nodes is behind.")

log = get_logger(__name__)


async def run_fleet(
    settings: Settings,
    *,
    nodes: int,
    clock: Clock,
    seed: int = 0,
    hours_back: float = 2.0,
    window_seconds: int | None = None,
    history_window_seconds: int | None = None,
    pods_per_node: int = 30,
    producers: ProducerFactory = open_producer,
) -> None:
    """Publish samples, nodes and pods of `nodes` simulated nodes until cancelled.

    `window_seconds` is the length of windows, by default the exporter's setting. Windows before the
    start have `history_window_seconds`, by default 300 s or the window length if that is longer.
    The same seed gives the same fleet. Raises `UsageError` for invalid numbers or lengths,
    `TopicDriftError` if a topic is missing, `KafkaError` if records cannot be delivered within the
    request timeout.
    """
    window = window_seconds or settings.exporter.window_seconds
    history = history_window_seconds or max(window, _HISTORY_WINDOW_SECONDS)
    _check(nodes, pods_per_node, hours_back, window, history)
    kafka = settings.kafka
    await require_topics(kafka, (SAMPLES, NODES, PODS))
    fleet = [SimulatedNode(seed, index, pods_per_node) for index in range(nodes)]
    known_values = {topic.name: await read_back(kafka, topic, SOURCE) for topic in (NODES, PODS)}
    async with producers(kafka, "springtide-fleet") as producer:
        simulation = _Fleet(fleet, kafka, producer, known_values, epoch=round(clock.now() * 1000))
        await _run(simulation, clock, hours_back, window, history)


def next_window(start: int, now: float, window: int, history: int) -> tuple[int, int]:
    """Return the window that begins at `start`: a history window if it has ended, else a short one.

    >>> next_window(600, now=1000.0, window=30, history=300)
    (600, 900)
    >>> next_window(900, now=1000.0, window=30, history=300)
    (900, 930)
    """
    length = history if start % history == 0 and start + history <= now else window
    return start, start + length


async def _run(fleet: "_Fleet", clock: Clock, hours_back: float, window: int, history: int) -> None:
    start_time = clock.now()
    end = int((start_time - hours_back * 3600) // history) * history
    logged = clock.monotonic()
    log.info("simulation starts", nodes=len(fleet.nodes), event_time=format_time(end))
    caught_up = False
    while True:
        # Computed again after each sleep, because the wall clock may have been set.
        start, next_end = next_window(end, clock.now(), window, history)
        if (early := next_end - clock.now()) > 0:
            if not caught_up:
                caught_up = True
                log.info("simulation has caught up with the clock", windows=fleet.sequence)
            await clock.sleep(min(early, _MAX_SLEEP_SECONDS))
            continue
        end = next_end
        await fleet.publish(start, end)
        BEHIND.set(clock.now() - end)
        if not caught_up and clock.monotonic() - logged >= _LOG_INTERVAL_SECONDS:
            logged = clock.monotonic()
            share = 1 - (start_time - end) / max(1.0, hours_back * 3600)
            log.info("simulating the past", event_time=format_time(end), done=f"{share:.0%}")


class _Fleet:
    """The published state of the simulated nodes."""

    def __init__(
        self,
        nodes: Sequence[SimulatedNode],
        kafka: KafkaSettings,
        producer: Producer,
        known_values: Mapping[str, Mapping[bytes, bytes]],
        epoch: int,
    ) -> None:
        self.nodes = nodes
        self.sequence = 0
        self._kafka = kafka
        self._producer = producer
        self._on_topic = known_values
        self._epoch = epoch
        self._pods: dict[str, set[str]] = {}

    async def publish(self, start: int, end: int) -> None:
        """Publish the window from `start` to `end` of every node, after changes of its pods."""
        if self.sequence == 0:
            await write(self._producer, self._kafka, SOURCE, self._first_objects(start, end))
        for first in range(0, len(self.nodes), _NODES_PER_BATCH):
            nodes = self.nodes[first : first + _NODES_PER_BATCH]
            entries = [entry for node in nodes for entry in self._entries(node, start, end)]
            await write(self._producer, self._kafka, SOURCE, entries)
        self.sequence += 1

    def _first_objects(self, start: int, end: int) -> list[Entry]:
        nodes = [node_entry(node.record) for node in self.nodes]
        pods = []
        for node in self.nodes:
            records = node.pods(start, end)
            self._pods[node.name] = set(records)
            pods += [pod_entry(record) for record in records.values()]
        return [
            *difference(NODES, {e.key: e for e in nodes}, self._on_topic[NODES.name]),
            *difference(PODS, {e.key: e for e in pods}, self._on_topic[PODS.name]),
        ]

    def _entries(self, node: SimulatedNode, start: int, end: int) -> Iterator[Entry]:
        pods = node.pods(start, end)
        before, self._pods[node.name] = self._pods[node.name], set(pods)
        for uid in sorted(before - pods.keys()):
            yield Entry(PODS, node.name, pod_key(node.name, uid), None)
        for uid in sorted(pods.keys() - before):
            yield pod_entry(pods[uid])
        sample = node.sample(start, end, epoch=self._epoch, sequence=self.sequence)
        yield Entry(SAMPLES, node.name, node.name.encode(), encode_samples(sample))


def _check(nodes: int, pods: int, hours_back: float, window: int, history: int) -> None:
    if not 1 <= nodes <= MAX_NODES:
        raise UsageError(f"a fleet has 1 to {MAX_NODES} nodes, not {nodes}")
    if not 0 <= pods <= 1000:
        raise UsageError(f"a simulated node has 0 to 1000 pods, not {pods}")
    if not 0 <= hours_back <= 24 * 366:
        raise UsageError(f"a fleet starts 0 to {24 * 366} hours back, not {hours_back}")
    for name, seconds in (("window", window), ("history window", history)):
        if not 1 <= seconds <= MAX_WINDOW_SECONDS or _DAY_SECONDS % seconds:
            raise UsageError(
                f"the {name} of a fleet is {seconds} s",
                hint=f"a divisor of a day from 1 to {MAX_WINDOW_SECONDS} s",
            )
    if history % window:
        raise UsageError(
            f"the history window of a fleet ({history} s) is not a multiple of its window "
            f"({window} s)"
        )
