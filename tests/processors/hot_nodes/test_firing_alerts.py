"""Open alerts as Alertmanager gets them."""

import msgspec
import pytest

from pipeline.errors import InvalidRecordError
from pipeline.processors.descheduling.relief_alerts import Hopeless, ReliefAlerts, Subject
from pipeline.processors.hot_nodes.firing_alerts import (
    FiringAlert,
    firing_alerts,
    firing_relief_alerts,
    posted_alert,
)
from pipeline.times import parse_time
from pipeline.topics.alerts import LevelChange, OpenAlert
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_state import NodeStateRecord

SINCE, AS_OF = "2026-11-28T10:00:00Z", "2026-11-28T10:05:00Z"
CPU = OpenAlert(
    rule="node_cpu", severity="warning", since=SINCE, usage_percent=81.25, threshold_percent=75.0
)
PROD = OpenAlert(rule="prod_memory", severity="critical", since=SINCE)


def state(node: str, *alerts: OpenAlert) -> NodeStateRecord:
    return NodeStateRecord(
        node=node, as_of=AS_OF, generation=0, offset=1, epoch=0, window_seconds=30.0, coverage=1.0,
        alerts=alerts,
    )  # fmt: skip


def test_each_open_alert_fires_under_its_own_labels() -> None:
    states = [state("a", CPU, PROD), state("b"), state("c", CPU)]
    firing = firing_alerts(states, {"cluster": "eu-1", "node": "never over the alert's own"})
    assert [*firing.values()] == [
        FiringAlert("a", CPU, AS_OF), FiringAlert("a", PROD, AS_OF), FiringAlert("c", CPU, AS_OF)
    ]  # fmt: skip
    for labels, alert in firing.items():
        assert dict(labels) == {
            "alertname": "SpringtideHotNode", "cluster": "eu-1", "node": alert.node,
            "rule": alert.alert.rule, "severity": alert.alert.severity,
        }  # fmt: skip


def test_a_critical_alert_is_another_one() -> None:
    critical = msgspec.structs.replace(CPU, severity="critical")
    warning = firing_alerts([state("a", CPU)], {})
    assert warning.keys().isdisjoint(firing_alerts([state("a", critical)], {}))
    later = msgspec.structs.replace(CPU, usage_percent=90.0)
    assert warning.keys() == firing_alerts([state("a", later)], {}).keys()


@pytest.mark.parametrize("since", ["garbage", "", "2026-02-30T10:00:00Z", "2026-11-28T10:00:00"])
def test_a_state_with_an_alert_of_no_time_is_no_record(since: str) -> None:
    data = encode_json(state("a", CPU)).replace(SINCE.encode(), since.encode())
    with pytest.raises(InvalidRecordError, match="since"):
        decode_json(NodeStateRecord, data)


def test_an_end_before_the_start_is_both() -> None:
    ((labels, firing),) = firing_alerts([state("a", CPU)], {}).items()
    posted = posted_alert(labels, firing, parse_time(SINCE) - 30.0)
    assert posted.starts_at == posted.ends_at == "2026-11-28T09:59:30Z"


def test_what_is_posted_says_what_is_hot_and_until_when() -> None:
    ((labels, firing),) = firing_alerts([state("a", CPU)], {}).items()
    posted = msgspec.to_builtins(posted_alert(labels, firing, 1_800_000_000.0))
    assert posted == {
        "labels": {
            "alertname": "SpringtideHotNode", "node": "a", "rule": "node_cpu",
            "severity": "warning",
        },
        "annotations": {
            "summary": "CPU of node a is above its threshold of 75%",
            "description": "Usage of allocatable is 81.2% at 2026-11-28T10:05:00Z. "
            "`springtide explain a` derives it.",
        },
        "startsAt": SINCE,
        "endsAt": "2027-01-15T08:00:00Z",
    }  # fmt: skip


def test_a_critical_alert_has_the_critical_threshold() -> None:
    critical = msgspec.structs.replace(CPU, severity="critical", usage_percent=91.0)
    ((labels, firing),) = firing_alerts([state("a", critical)], {}).items()
    summary = posted_alert(labels, firing, 0.0).annotations["summary"]
    assert summary == "CPU of node a is above its critical threshold of 87.5%"


def test_unknown_numbers_are_not_zero() -> None:
    ((labels, firing),) = firing_alerts([state("a", PROD)], {}).items()
    texts = posted_alert(labels, firing, 0.0).annotations
    assert texts["summary"] == "Memory of the Prod pods of node a is above its critical threshold"
    assert texts["description"].startswith("Usage of allocatable is unknown at")


def test_alerts_of_the_planner_name_their_node_or_pool_and_say_why() -> None:
    records = ReliefAlerts().opened(
        [
            Hopeless(Subject("all_nodes_hot", "", "gold"), "gold", "no node is low"),
            Hopeless(Subject("nothing_can_be_done", "a"), "gold", "no pod may move"),
            Hopeless(Subject("plans_do_not_help", "", "gold"), "gold", "the last 3 did not help"),
        ],
        1_800_000_000.0,
    )  # fmt: skip
    firing = firing_relief_alerts(records, {"cluster": "eu-1"})
    posted = [posted_alert(labels, alert, 1_800_000_060.0) for labels, alert in firing.items()]
    common = {"alertname": "SpringtideHotNode", "cluster": "eu-1"}
    assert [alert.labels for alert in posted] == [
        common | {"pool": "gold", "rule": "all_nodes_hot", "severity": "critical"},
        common | {"node": "a", "rule": "nothing_can_be_done", "severity": "warning"},
        common | {"pool": "gold", "rule": "plans_do_not_help", "severity": "warning"},
    ]
    assert [alert.annotations for alert in posted] == [
        {
            "summary": "No node of pool gold can take pods of its hot nodes",
            "description": "no node is low. `springtide plan` shows the plan.",
        },
        {
            "summary": "Hot node a cannot be relieved",
            "description": "no pod may move. `springtide plan` shows the plan.",
        },
        {
            "summary": "Plans for pool gold are paused, because they do not help",
            "description": "the last 3 did not help. `springtide plan` shows the plan.",
        },
    ]
    assert {alert.starts_at for alert in posted} == {"2027-01-15T08:00:00Z"}


def test_alerts_about_levels_have_a_name_of_their_own_and_the_pool_or_workload() -> None:
    change = LevelChange(since="2027-01-15T03:00:00Z", before=0.3, after=0.6, detector="d")
    subjects = [
        Subject("pool_memory_level", "", "gold"),
        Subject("workload_cpu_level", "", workload="Deployment/shop/web"),
    ]
    records = ReliefAlerts().opened(
        [Hopeless(subject, "gold", "usage rose", change) for subject in subjects], 1_800_000_000.0
    )
    posted = [
        posted_alert(*item, 1_800_000_060.0) for item in firing_relief_alerts(records, {}).items()
    ]
    common = {"alertname": "SpringtideLevelChange", "severity": "warning"}
    assert [(alert.labels, alert.annotations["summary"]) for alert in posted] == [
        (
            common | {"rule": "pool_memory_level", "pool": "gold"},
            "Memory usage of pool gold has changed its level",
        ),
        (
            common | {"rule": "workload_cpu_level", "workload": "Deployment/shop/web"},
            "CPU usage of Deployment/shop/web has changed its level",
        ),
    ]
    assert {alert.annotations["description"] for alert in posted} == {"usage rose."}
