"""Wake pending pods when a Node may take one by now, by an annotation of the Node.

kube-scheduler retries a pod that an extender refused when a Node changes, else only after minutes.
The extender knows which pods wait and when a reason disappears, and asks for one change of a Node
by a wake-up. So no Node is written for which no pod waits.

Only the change of the annotation matters, not its value. So the actuator never reads it back, as
`NodeMetadataFeature` does to repair a difference, and repeats a write whose outcome is unknown.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from actuators.cluster.feature import Context, Feature, Follower, Topics, Watch
from actuators.cluster.node_metadata_feature import NodeMetadataFeature, patch_node
from actuators.cluster.write_queue import Write
from pipeline.errors import KubernetesError, NotFoundError
from pipeline.times import parse_time
from pipeline.topics.registry import WAKE_UPS, Topic

COOLED: Final = "springtide/cooled"
"""Annotation of a Node that may take a pod that it refused: time of the wake-up."""

EXTENDER_LAG_SECONDS: Final = 1.0
"""Extenders read the topics a few times a second: the scheduler must not ask them earlier. Wake-ups
of several extenders within this time become one write."""
WAKE_UP_SECONDS: Final = 60.0
"""Older wake-ups are ignored: the extender repeats those of pods that still wait."""


class _Removal(NodeMetadataFeature):
    """Removes the annotation from every Node: no value is ever desired."""

    name = "cooled"
    annotations = (COOLED,)


class CooledNodes(Feature):
    """Follows the wake-ups of extenders. Those of the last minute before `start` count, too: the
    previous leader may not have executed them."""

    name = _Removal.name
    annotations = _Removal.annotations
    topics: ClassVar[Topics] = {WAKE_UPS: WAKE_UP_SECONDS}

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._removal = None if self.is_on else _Removal(context)
        self._woken_at: dict[str, str] = {}
        self._due: dict[str, float] = {}

    @property
    def watches(self) -> Mapping[Watch, Follower]:
        return {} if self._removal is None else self._removal.watches

    def learn(self, topic: Topic, node: str, record: Any) -> None:
        if record is not None and self._clock.now() - parse_time(record.at) < WAKE_UP_SECONDS:
            self._woken_at[node] = record.at
            self._due.setdefault(node, self._clock.monotonic() + EXTENDER_LAG_SECONDS)

    def decide(self, *, everything: bool) -> None:
        if self._removal is not None:
            self._removal.decide(everything=everything)
        now = self._clock.monotonic()
        for name in [name for name, due in self._due.items() if due <= now]:
            del self._due[name]
            self._queue.put(self.name, name, self._waking(name, self._woken_at.pop(name)))

    def _waking(self, name: str, at: str) -> Write:
        async def execute() -> None:
            await patch_node(self._api, name, {"annotations": {COOLED: at}})

        def on_failure(error: KubernetesError) -> None:
            # No pod waits for a deleted Node, and after a while another wake-up follows.
            is_late = self._clock.now() - parse_time(at) >= WAKE_UP_SECONDS
            if not isinstance(error, NotFoundError) and not is_late and name not in self._due:
                self._queue.put(self.name, name, self._waking(name, at))

        return Write(execute, on_failure)
