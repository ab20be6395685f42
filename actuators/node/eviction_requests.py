"""Ask on `springtide.eviction-requests` for the pods that should leave this node.

The features in mode `act` ask, those in mode `observe` only publish on `springtide.actions` what
they would ask. The planner plans what is asked, and the evictor checks each pod again, with all of
its limits and its kill switch. While the file `stop_file` exists, this node asks for nothing.

While Kafka is away, the newest wishes replace those before: nothing queues, and what is no longer
wished is never sent.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from actuators.node.stop_file import STOP_FILE, is_stopped
from pipeline.clock import Clock
from pipeline.errors import KafkaError
from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.kafka.producer import Producer
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.processors.node_qos.eviction_victims import EvictionFeature
from pipeline.processors.node_qos.node_evictions import EvictionWish, NodeEvictions
from pipeline.processors.node_qos.node_state import NodeState
from pipeline.processors.node_qos.relief_requests import ACTUATOR, ReliefRequests
from pipeline.settings import KafkaSettings
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord, Outcome
from pipeline.topics.codec import encode_json
from pipeline.topics.eviction_requests import EvictionRequestRecord
from pipeline.topics.registry import EVICTION_REQUESTS

log = get_logger(__name__)

WISHED = gauge(
    "node_actuator_wished_evictions",
    "Pods that should leave the node now, by feature: asked for, or observed only.",
    ["feature", "mode"],
)
REQUESTS = counter(
    "node_actuator_eviction_requests",
    "Records on springtide.eviction-requests: asked, withdrawn, or failed (not delivered).",
    ["result"],
)

USAGE_SECONDS: Final = 10.0
"""Usage that is older asks for nothing."""
_DELIVERY_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 5.0
"""After a failed delivery."""


class EvictionRequests:
    """The evictions of a node: `step` decides in each round, `run` sends.

    `modes` has the mode of each feature (off, observe, act) by `EvictionFeature.setting`. `record`
    takes an action for each pod that is asked for or observed.
    """

    def __init__(
        self, node: str, modes: Mapping[str, str], kafka: KafkaSettings,
        record: Callable[[ActionRecord], None], clock: Clock, stop_file: Path = STOP_FILE,
    ) -> None:  # fmt: skip
        self._node, self._kafka, self._clock = node, kafka, clock
        self._record, self._stop_file = record, stop_file
        features = {
            mode: [feature for feature in EvictionFeature if modes.get(feature.setting) == mode]
            for mode in ("act", "observe")
        }
        self._by_mode = {mode: NodeEvictions(some) for mode, some in features.items() if some}
        self._reported: dict[str, dict[str, float]] = {mode: {} for mode in self._by_mode}
        self._requests = ReliefRequests(node)
        self._topic = EVICTION_REQUESTS.full_name(kafka.topic_prefix)

    def step(self, state: NodeState) -> None:
        """Decide for a node with a fresh view. Without one this is not called, and a request that
        is open ends within a minute."""
        if abs(self._clock.now() - state.at) > USAGE_SECONDS:
            return
        for mode, evictions in self._by_mode.items():
            wishes = evictions.wishes(state)
            self._report(mode, wishes, {pod.uid for pod in state.pods})
            if mode == "act":
                allowed = () if is_stopped(self._stop_file) else wishes
                self._requests.want(allowed, self._clock.monotonic())

    async def run(self) -> None:
        """Send what is due, until cancelled. What is open then ends within a minute."""
        producer = Producer(client_options(self._kafka))
        try:
            while True:
                record = self._requests.due(self._clock.monotonic(), self._clock.now())
                pause = _LOOK_SECONDS
                if record is not None and not await self._send(producer, record):
                    pause = _PAUSE_SECONDS
                await self._clock.sleep(pause)
        finally:
            await producer.stop()

    async def _send(self, producer: Producer, record: EvictionRequestRecord) -> bool:
        """Deliver a record; returns whether that succeeded."""
        try:
            async with asyncio.timeout(_DELIVERY_SECONDS):
                await producer.deliver(
                    self._topic,
                    value=encode_json(record),
                    key=self._node.encode(),
                    partition=partition_of(self._node, self._kafka.partitions),
                )
        except (KafkaError, TimeoutError) as error:
            REQUESTS.labels("failed").inc()
            log.warning(
                "request for evictions is not delivered, the newest wishes are tried again",
                per="delivery", why=str(error) or f"no delivery within {_DELIVERY_SECONDS:g} s",
            )  # fmt: skip
            # What the client still holds would be sent later, wished or not.
            await producer.stop(0.0)
            return False
        REQUESTS.labels("asked" if record.pods else "withdrawn").inc()
        self._requests.note_sent(record, self._clock.monotonic())
        return True

    def _report(self, mode: str, wishes: Sequence[EvictionWish], present: set[str]) -> None:
        """Count the wishes, and record each choice once."""
        for feature in EvictionFeature:
            count = sum(wish.feature is feature for wish in wishes)
            WISHED.labels(feature.setting, mode).set(count)
        before = self._reported[mode]
        reported = {uid: since for uid, since in before.items() if uid in present}
        for wish in wishes:
            if reported.get(wish.uid) != wish.since:
                log.info("a pod should leave", pod=f"{wish.namespace}/{wish.name}", mode=mode,
                         feature=wish.feature.setting, why=wish.why)  # fmt: skip
                self._record(self._action(wish, "intended" if mode == "act" else "observed"))
        self._reported[mode] = reported | {wish.uid: wish.since for wish in wishes}

    def _action(self, wish: EvictionWish, outcome: Outcome) -> ActionRecord:
        pod = f"{wish.namespace}/{wish.name}"
        return ActionRecord(
            node=self._node, at=format_time(self._clock.now()), actuator=ACTUATOR,
            action=wish.feature.setting, outcome=outcome, why=wish.why,
            before={pod: wish.uid}, after={pod: None},
        )  # fmt: skip
