"""How a worker with a backlog gets it from Faust without standing still.

Of Faust's own ways two made it wait for a second at a time with nothing to do. A partition whose
queue is nearly full is paused, and looked for again only between two fetches: here nothing is
paused, and the hand that fills a full queue waits for room. And a fetch may wait 1.5 s in the
broker for the first record: while it waits for samples, of which there are no more, nobody fetches
the windows that are there. Join and model do not need one another to empty their queues, so neither
can wait for ever.
"""

from typing import Final

from aiokafka import AIOKafkaConsumer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP

_FETCH_WAIT_MS: Final = 100


class PromptThread(AIOKafkaConsumerThread):
    """The thread that fetches; Faust has no setting for how long a fetch may wait."""

    def _create_worker_consumer(self, transport: Transport) -> AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = _FETCH_WAIT_MS
        return consumer


class WaitingConsumer(Consumer):
    """Faust's consumer, which pauses nothing."""

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return PromptThread(self, loop=self.loop, beacon=self.beacon)

    def on_buffer_full(self, tp: TP) -> None:
        """A queue is nearly full; once it is full, whoever fills it waits."""

    def on_buffer_drop(self, tp: TP) -> None:
        """A queue has room again; nothing was paused."""


class WaitingTransport(Transport):
    """Faust's transport with this consumer."""

    Consumer = WaitingConsumer
