"""What actuators did about a node, asked through HTTP."""

from pipeline.extender.console_documents import ReliefReading
from pipeline.table import FeedState
from tests.extender.conftest import Start
from tests.processors.console.test_node_actions import action
from tests.table.records import NOW

URL = "/v1/nodes/a/actions"


async def test_actions_are_answered_with_a_tag(start: Start) -> None:
    relief = ReliefReading(state=FeedState(caught_up=True))
    actions = relief.actions
    client = await start(relief=relief)
    assert (await (await client.get(URL)).json())["items"] == []
    actions.take(b"a", action(), NOW, NOW)
    response = await client.get(URL)
    document = await response.json()
    assert (document["kind"], document["node"]) == ("NodeActionList", "a")
    assert document["items"][0]["action"] == "cpu_suppress"
    tag = {"If-None-Match": response.headers["ETag"]}
    assert (await client.get(URL, headers=tag)).status == 304


async def test_without_the_topic_of_actions_the_answer_is_503(start: Start) -> None:
    response = await (await start()).get(URL)
    assert response.status == 503
    assert "not caught up" in (await response.json())["Error"]
