"""When a node asks, repeats and withdraws, and what its records say."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.descheduling.node_requests import NodeRequests
from pipeline.processors.node_qos.eviction_victims import EvictionFeature
from pipeline.processors.node_qos.node_evictions import EvictionWish
from pipeline.processors.node_qos.relief_requests import (
    CONFIRMED_SECONDS,
    REPEAT_SECONDS,
    VALID_SECONDS,
    WITHDRAWN_SECONDS,
    ReliefRequests,
)
from pipeline.topics.eviction_requests import EvictionRequestRecord
from tests.processors.node_qos.eviction_pods import NOW


def wish(uid: str, since: float = NOW, **fields: Any) -> EvictionWish:
    values: dict[str, Any] = {
        "namespace": "shop", "name": uid, "pod_class": "batch", "feature": EvictionFeature.CPU,
        "cpu_millicores": 500, "memory_bytes": 7, "why": "CPU usage is high",
    }  # fmt: skip
    return EvictionWish(uid=uid, since=since, **(values | fields))


class Sending:
    """A node whose requests are all delivered."""

    def __init__(self) -> None:
        self.requests, self.at = ReliefRequests("node-1"), 0.0

    def after(self, seconds: float, *wishes: EvictionWish) -> EvictionRequestRecord | None:
        """The record that is sent after so many seconds, with these wishes since before."""
        self.at += seconds
        self.requests.want(wishes, self.at)
        return self.deliver()

    def deliver(self) -> EvictionRequestRecord | None:
        record = self.requests.due(self.at, NOW + self.at)
        if record is not None:
            self.requests.note_sent(record, self.at)
        return record


def test_a_request_names_the_pods_their_usage_and_the_reasons() -> None:
    of_memory = {"feature": EvictionFeature.BE_MEMORY, "why": "memory usage is high"}
    other = wish("b", NOW + 5, pod_class="free", cpu_millicores=0, **of_memory)
    record = Sending().after(0.0, wish("a"), other)
    assert record == EvictionRequestRecord(
        node="node-1", id="node-1/2023-11-14T22:13:25Z", at="2023-11-14T22:13:20Z",
        valid_until="2023-11-14T22:14:20Z", requester="node-actuator",
        why="CPUEvict: CPU usage is high; BEMemoryEvict: memory usage is high",
        cpu_millicores=500, memory_bytes=14, classes=("batch", "free"), pods=("a", "b"),
    )  # fmt: skip
    requests = NodeRequests({"node-1"}.__contains__)
    assert requests.take(record, NOW, NOW)
    assert requests.open(NOW)["node-1"].pods == ("a", "b")


def test_pods_that_use_nothing_are_asked_for_too() -> None:
    record = Sending().after(0.0, wish("a", cpu_millicores=0, memory_bytes=0))
    assert record is not None
    assert NodeRequests({"node-1"}.__contains__).take(record, NOW, NOW)


def test_a_request_is_repeated_under_its_name_and_changed_at_once() -> None:
    sending = Sending()
    first = sending.after(0.0, wish("a"))
    assert first is not None
    assert sending.after(REPEAT_SECONDS - 1, wish("a", cpu_millicores=900)) is None
    repeat = sending.after(1.0, wish("a"))
    assert repeat is not None
    assert (repeat.id, repeat.pods) == (first.id, first.pods)
    changed = sending.after(1.0, wish("a"), wish("b", NOW + 21))
    assert changed is not None
    assert changed.id != first.id
    fewer = sending.after(1.0, wish("b", NOW + 21))
    assert fewer is not None
    assert (fewer.id, fewer.pods) == (changed.id, ("b",))


def test_a_request_is_withdrawn_when_nothing_is_wished_any_more() -> None:
    sending = Sending()
    assert sending.after(0.0) is None
    sending.after(0.0, wish("a"))
    assert sending.after(1.0) is None  # one sample may be missing
    withdrawal = sending.after(WITHDRAWN_SECONDS)
    assert withdrawal is not None
    requests = NodeRequests({"node-1"}.__contains__)
    asked = Sending().after(0.0, wish("a"))
    assert asked is not None
    requests.take(asked, NOW, NOW)
    requests.take(withdrawal, NOW, NOW)
    assert requests.open(NOW) == {}
    assert sending.after(REPEAT_SECONDS) is None


def test_a_request_that_has_ended_is_not_withdrawn() -> None:
    sending = Sending()
    sending.after(0.0, wish("a"))
    assert sending.after(VALID_SECONDS) is None


def test_wishes_that_nobody_confirms_are_not_sent() -> None:
    sending = Sending()
    sending.requests.want([wish("a")], 0.0)
    sending.at = CONFIRMED_SECONDS + 1
    assert sending.deliver() is None
    assert sending.after(0.0, wish("a")) is not None


def test_after_an_outage_only_the_newest_wish_is_sent() -> None:
    sending = Sending()
    for second in range(100):
        sending.at = float(second)
        sending.requests.want([wish(f"old-{second}")], sending.at)
        assert sending.requests.due(sending.at, NOW) is not None  # it is not delivered
    record = sending.after(1.0, wish("new"))
    assert record is not None
    assert record.pods == ("new",)
    lost = Sending()
    lost.requests.want([wish("gone")], 0.0)
    assert lost.requests.due(0.0, NOW) is not None
    assert lost.after(WITHDRAWN_SECONDS) is None


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 5.0, 30.0]), st.sets(st.sampled_from("abc")))))
def test_what_the_planner_knows_is_never_older_than_a_repeat(
    rounds: list[tuple[float, set[str]]],
) -> None:
    sending, requests = Sending(), NodeRequests({"node-1"}.__contains__)
    for seconds, names in rounds:
        record = sending.after(seconds, *(wish(name) for name in sorted(names)))
        now = NOW + sending.at
        if record is not None:
            requests.take(record, now, now)
        known = requests.open(now).get("node-1")
        if names:
            assert known is not None
            assert known.pods == tuple(sorted(names))
            assert known.until - now > VALID_SECONDS - REPEAT_SECONDS
