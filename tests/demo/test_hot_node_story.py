"""The story of the demo of hot nodes: records and pods in, lines out, and what was not seen."""

from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.local import hot_node_scenario as scenario
from pipeline.local.hot_node_scenario import PROTECTED, RELIEVED
from pipeline.local.hot_node_story import STEPS, RunningPod, Story
from pipeline.local.replayed_usage import NODE_CORES
from pipeline.processors.descheduling.descheduler_config import read_configuration
from pipeline.processors.placement.scheduler_findings import findings
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.alerts import AlertRecord, Evidence
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.resource_amounts import Usage

BEGAN = 1_700_000_000.0
"""22:13:20 UTC."""
PODS = [
    RunningPod(f"{node.deployment}-{i}", f"{node.deployment}-{i}", node.deployment, node.name)
    for node in scenario.HOT_NODES
    for i in range(2)
]
REPLACEMENT = RunningPod("web-9", "web-9", "web", "spare-1")
AFTER_EVICTION = [*PODS[1:], REPLACEMENT]


def state(cores: float | None, node: str = RELIEVED.name, offset: int = 1) -> NodeStateRecord:
    return NodeStateRecord(
        node=node, as_of=format_time(BEGAN), generation=1, offset=offset, epoch=1,
        window_seconds=5.0, coverage=1.0, usage=Usage(cpu_cores=cores),
        allocatable=Usage(cpu_cores=32.0),
    )  # fmt: skip


def alert(transition: Any, node: str = RELIEVED.name, **fields: Any) -> AlertRecord:
    evidence = Evidence(
        usage="average", span_seconds=60, usage_percent=71.25, threshold_percent=65.0
    )
    return AlertRecord(
        **{
            "node": node, "as_of": format_time(BEGAN), "generation": 1, "offset": 5, "epoch": 1,
            "id": f"{node}/node_cpu/x", "rule": "node_cpu", "transition": transition,
            "severity": "warning", "since": format_time(BEGAN), "duration_seconds": 50.0,
            "evidence": evidence,
        } | fields
    )  # fmt: skip


def plan(node: str = RELIEVED.name, pod: str = "web-0") -> EvictionPlanRecord:
    leaving = LeavingPod(
        uid=pod, pod_class="prod", namespace="default", name=pod, cpu_millicores=11_200,
        target="spare-1", target_usage={"cpu": 36.4}, why_not=("gpu-1: it has a taint",),
    )  # fmt: skip
    return EvictionPlanRecord(
        node=node, id=f"{node}/1", at=format_time(BEGAN), valid_until=format_time(BEGAN + 60),
        planner="planner", why="it is hot", pods=(leaving,), strategy="LowNodeLoad",
    )  # fmt: skip


def action(outcome: Any, node: str = RELIEVED.name, **fields: Any) -> ActionRecord:
    return ActionRecord(
        **{
            "node": node, "at": format_time(BEGAN), "actuator": "evictor", "action": "evict",
            "outcome": outcome, "why": "", "before": {"default/web-0": "web-0"}, "plan": "p",
        } | fields
    )  # fmt: skip


def verdict(outcome: Any, why: str) -> ActionRecord:
    after: dict[str, str | None] = {"cpu_percent": "46.2", "memory_percent": None}
    return action(outcome, actuator="planner", why=why, before={}, after=after)


REFUSAL = action("refused", PROTECTED.name, before={"default/db-0": "u"}, error="the budget")


def tell(story: Story, record: Any, now: float = BEGAN) -> list[str]:
    """The lines about a record or about pods, without time and node."""
    lines: Iterator[str]
    match record:
        case NodeStateRecord():
            lines = story.take_state(record, now)
        case AlertRecord():
            lines = story.take_alert(record, now)
        case EvictionPlanRecord():
            lines = story.take_plan(record, now)
        case ActionRecord():
            lines = story.take_action(record, now)
        case _:
            lines = story.take_pods(record, now)
    return [line[21:] for line in lines]


def complete(story: Story) -> None:
    """Let everything happen, a second apart."""
    now = BEGAN
    for record in (
        state(29.0), state(29.0, PROTECTED.name), alert("opened"), alert("opened", PROTECTED.name),
        plan(), plan(PROTECTED.name, "db-0"), action("intended"), action("done"), AFTER_EVICTION,
        alert("closed", reason="cooled"), REFUSAL, verdict("done", "the node cooled"),
    ):  # fmt: skip
        now += 1
        tell(story, record, now)


@pytest.fixture
def story() -> Story:
    return Story(BEGAN, PODS)


def test_each_record_is_told_once_with_time_and_node(story: Story) -> None:
    lines = [*story.take_alert(alert("opened"), BEGAN + 1)]
    assert lines == [
        "22:13:21  web-node   alert node_cpu opened (warning): 71.2%, average of 60 s; the "
        "threshold is 65%"
    ]
    for record in (alert("opened"), plan(), action("done"), verdict("done", "it cooled"), PODS):
        tell(story, record)
        assert tell(story, record) == []


def test_a_change_names_the_mark_that_it_crossed(story: Story) -> None:
    evidence = Evidence(
        usage="average", span_seconds=60, usage_percent=88.5, threshold_percent=65.0,
        critical_percent=82.5,
    )  # fmt: skip
    changes = [
        alert("opened", evidence=evidence, offset=1),
        alert("escalated", severity="critical", evidence=evidence, offset=2),
        alert("eased", evidence=evidence, offset=3),
        alert("closed", severity="critical", reason="cooled", evidence=evidence, offset=4),
    ]
    ends = [line.rpartition("average of 60 s")[2] for a in changes for line in tell(story, a)]
    assert ends == [
        "; the threshold is 65%",
        "; the threshold is 82.5%",
        "; the threshold is 82.5%",
        "",
    ]


def test_a_refusal_at_the_end_of_a_plan_says_that_the_evictor_waited(story: Story) -> None:
    tell(story, plan(PROTECTED.name, "db-0"))
    fields: dict[str, Any] = {"plan": f"{PROTECTED.name}/1", "error": "Forbidden: the budget"}
    assert len(tell(story, action("refused", PROTECTED.name, **fields))) == 1
    late = action("refused", PROTECTED.name, at=format_time(BEGAN + 59.2), **fields)
    assert tell(story, late)[1:] == ["  the evictor tried again until the plan expired"]


def test_a_missed_step_repeats_the_refusal(story: Story) -> None:
    for record in (state(29.0), alert("opened"), plan()):
        tell(story, record)
    tell(story, action("refused", error="evictions are stopped by /x"))
    assert story.unseen(BEGAN + 181)[0] == (
        "eviction on web-node was not seen within 180 s (evictions are stopped by /x)"
    )


def test_usage_is_told_when_it_is_above_the_mark(story: Story) -> None:
    assert tell(story, state(20.0, offset=1)) == []
    assert tell(story, state(None, offset=2)) == []
    assert tell(story, state(29.0, "spare-1", offset=2)) == []
    assert tell(story, state(28.8, offset=3)) == [
        "uses 90% of its CPU; it is hot when the average of 60 s is above 65%"
    ]
    assert tell(story, state(30.0, offset=4)) == []
    assert "CPU now: web-node 94%" in story.status(BEGAN)


def test_a_plan_says_which_pod_goes_where_and_why_not_elsewhere(story: Story) -> None:
    assert tell(story, plan()) == [
        "plan of LowNodeLoad, valid for 60 s: it is hot",
        "  default/web-0 (prod, 11200m) to spare-1, which then uses 36% of its CPU",
        "    not to gpu-1: it has a taint",
    ]


def test_evictions_and_refusals_are_told_with_their_reason(story: Story) -> None:
    assert tell(story, action("intended")) == ["evictor asks the API server to evict default/web-0"]
    assert tell(story, action("done")) == ["evicted default/web-0"]
    assert tell(story, REFUSAL) == ["not evicted: default/db-0: the budget"]
    assert tell(story, action("failed", error="500")) == ["eviction of default/web-0 failed: 500"]


def test_a_replacement_is_told_where_it_was_bound(story: Story) -> None:
    tell(story, plan())
    assert tell(story, PODS) == []
    assert tell(story, AFTER_EVICTION) == ["kube-scheduler bound a new pod of web here, web-9"]
    another = REPLACEMENT._replace(uid="web-10", node="spare-2")
    (line,) = tell(story, [*PODS, another])
    assert line.endswith("; the plan expected it on spare-1")
    assert story.problems == []


def test_alerts_of_the_planner_are_told_with_their_reason(story: Story) -> None:
    hopeless = alert(
        "opened", "", rule="all_nodes_hot", pool="gold", evidence=Evidence(), why="no room"
    )
    assert [*story.take_alert(hopeless, BEGAN)] == [
        "22:13:20  pool gold  alert all_nodes_hot opened (warning): no room"
    ]


def test_the_story_is_complete_when_every_step_was_seen(story: Story) -> None:
    complete(story)
    assert (story.is_complete, story.problems) == (True, [])
    assert story.unseen(BEGAN + 10_000) == []
    table = story.summary()
    assert len(table) == 1 + len(STEPS)
    assert table[1].split() == ["usage", "above", "the", "threshold", "web-node", "1", "s"]
    assert "not seen" not in "\n".join(table)
    assert story.status(BEGAN + 156).startswith("156 s; everything was seen")


@pytest.mark.parametrize("missing", range(12))
def test_a_story_without_one_of_its_records_is_not_complete(story: Story, missing: int) -> None:
    """All but the intention of the evictor: its outcome says more."""
    records: list[Any] = [
        state(29.0), state(29.0, PROTECTED.name), alert("opened"), alert("opened", PROTECTED.name),
        plan(), plan(PROTECTED.name, "db-0"), action("intended"), action("done"), AFTER_EVICTION,
        alert("closed", reason="cooled"), REFUSAL, verdict("done", "the node cooled"),
    ]  # fmt: skip
    del records[missing]
    for record in records:
        tell(story, record)
    assert story.is_complete == (missing == 6)
    assert len(story.unseen(BEGAN + 10_000)) == (missing != 6)


def test_a_step_is_missed_only_after_its_limit_since_the_step_before(story: Story) -> None:
    assert story.unseen(BEGAN + 180) == []
    assert story.unseen(BEGAN + 181) == [
        "usage above the threshold on web-node was not seen within 180 s",
        "usage above the threshold on db-node was not seen within 180 s",
    ]
    tell(story, state(29.0), BEGAN + 170)
    tell(story, state(29.0, PROTECTED.name), BEGAN + 170)
    assert story.unseen(BEGAN + 400) == []
    assert story.unseen(BEGAN + 411)[0] == "alert opened on web-node was not seen within 240 s"
    assert "not seen" in story.summary()[2]
    assert story.status(BEGAN + 400).startswith(
        "400 s; waiting for alert opened on web-node, alert opened on db-node"
    )


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (verdict("failed", "the node is still hot"),
         "the plan for web-node did not help: the node is still hot"),
        (action("done", PROTECTED.name), "default/web-0 was evicted from db-node"),
        (PODS[:3], "db-1 left db-node, whose budget allows no eviction"),
        ([*PODS, REPLACEMENT._replace(node=PROTECTED.name)],
         "web-9 was bound to db-node, which is hot"),
    ],
)  # fmt: skip
def test_what_must_not_happen_is_a_problem(story: Story, record: Any, problem: str) -> None:
    tell(story, record)
    assert story.problems == [problem]


# -- the scenario


def test_the_policy_and_the_scheduler_configuration_of_the_demo_have_no_problem() -> None:
    configuration, problems = read_configuration(
        scenario.config_map("name", "namespace")["data"]["name"]
    )
    assert problems == ()
    assert configuration is not None
    assert configuration.low_node_load is not None
    document = scenario.scheduler_configuration("http://127.0.0.1:1")
    # It waits for the extender on purpose: a late answer must not change where pods land.
    where = [finding.where for finding in findings(document, "act")]
    assert where == ["extenders[0].httpTimeout", "extenders[0].ignorable"]


def test_recorded_usage_makes_a_node_hot_with_two_pods_and_not_with_one() -> None:
    def percent(step: int, pods: int) -> float:
        return 100 * pods * scenario.usage("any", step)[0] / NODE_CORES

    quiet = [percent(step, 2) for step in range(scenario.QUIET_STEPS)]
    busy = range(scenario.QUIET_STEPS, 400)
    assert max(quiet) < scenario.HIGH_PERCENT
    assert min(percent(step, 2) for step in busy) > scenario.HIGH_PERCENT + 20
    assert max(percent(step, 1) for step in busy) < scenario.HIGH_PERCENT - 10
