"""How a worker with a backlog gets it from Faust without standing still.

Four of Faust's ways are replaced. A partition whose queue is nearly full is paused, and looked for
again only between two fetches: here nothing is paused, and the hand that fills a full queue waits
for room. A fetch may wait 1.5 s in the broker, and the next record of a partition that was just
read waits for its end: here it waits a tenth of a second. And four tasks are made for each message,
to wait for its delivery, for the end of the flow and for the end of the consumer, whatever comes
first: here a delivery that need not wait is simply made.
"""

from asyncio import iscoroutine
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from faust import Event, Schema
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP, AppT
from mode.services import WaitResults

_FETCH_WAIT_MS: Final = 100


class AsItCame(Schema[bytes, bytes]):
    """Events with the bytes of their records."""

    def compile(self, app: AppT, **_: Any) -> Any:
        async def decode(message: Any, *, propagate: bool = False) -> Event:
            return Event(app, message.key, message.value, message.headers, message)

        return decode


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

    async def wait_first(self, *coros: Any, timeout: Any = None) -> WaitResults:
        """Wait until one of these is done, or the consumer. Of several coroutines the first begins
        at once, and if it ends without waiting, the others do not begin."""
        first, *others = coros
        if not (others and iscoroutine(first)):
            return await super().wait_first(*coros, timeout=timeout)
        try:
            waited_for = first.send(None)
        except BaseException as end:
            for other in others:
                other.close()
            if isinstance(end, StopIteration):
                return WaitResults([first], [end.value], False)
            raise
        return await super().wait_first(_Begun(first, waited_for), *others, timeout=timeout)


class _Begun:
    """The rest of a coroutine that waits for `waited_for`."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waited_for: Any) -> None:
        self._coroutine = coroutine
        self._waited_for = waited_for

    def __await__(self) -> Generator[Any, Any, Any]:
        waited_for = self._waited_for
        while True:
            try:
                sent = yield waited_for
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as error:
                step: Callable[[Any], Any] = self._coroutine.throw
                of = error
            else:
                step, of = self._coroutine.send, sent
            try:
                waited_for = step(of)
            except StopIteration as end:
                return end.value


class WaitingTransport(Transport):
    """Faust's transport with this consumer."""

    Consumer = WaitingConsumer
