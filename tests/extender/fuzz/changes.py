"""Steps that change the input of an extender: records, tombstones, and time that passes."""

from typing import NamedTuple

from pipeline.table.node_columns import OfferedResources, TableNode
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.pods import CountedPod
from tests.extender.fuzz.extender_process import FeedInput
from tests.extender.fuzz.fleet import Fleet


class Change(NamedTuple):
    """A record comes, of a window or pod so many seconds old."""

    record: NodeStateRecord | TableNode | OfferedResources | NodeViewRecord | CountedPod
    age: float | None = 0.0
    older: bool = False

    def feed_input(self, fleet: Fleet) -> FeedInput:
        match self.record:
            case NodeStateRecord():
                return fleet.put_state(self.record, self.age or 0.0, older=self.older)
            case TableNode():
                return fleet.put_node(self.record)
            case OfferedResources():
                return fleet.put_offer(self.record, self.age or 0.0)
            case NodeViewRecord():
                return fleet.put_view(self.record)
        return fleet.put_pod(self.record, self.age)

    async def run(self, fleet: Fleet) -> None:
        await fleet.feed(self.feed_input(fleet))


class Drop(NamedTuple):
    """A tombstone comes, of something that is there or not."""

    topic: str
    name: str

    def feed_input(self, fleet: Fleet) -> FeedInput:
        if self.topic != "pods":
            return fleet.drop(self.topic, self.name)
        if self.name in fleet.pods:
            return fleet.drop_pod(self.name)
        return fleet.drop_unseen("a", self.name)

    async def run(self, fleet: Fleet) -> None:
        await fleet.feed(self.feed_input(fleet))


class Pass(NamedTuple):
    seconds: float

    async def run(self, fleet: Fleet) -> None:
        await fleet.feed(fleet.pass_by(self.seconds))
