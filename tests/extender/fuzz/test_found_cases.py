"""Cases that fuzzing has found, without a process: the table decides as the oracle does."""

import pytest

from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions
from pipeline.processors.overcommit.offer_bounds import BatchPart, MidPart
from pipeline.table import Table
from pipeline.table.node_columns import OfferedResources, TableNode
from pipeline.times import format_time
from pipeline.topics.pods import CountedPod
from pipeline.topics.resource_amounts import Resources
from tests.extender import oracle
from tests.extender.fuzz.extender_process import SETTINGS
from tests.extender.fuzz.fleet import STALE
from tests.extender.fuzz.questions import as_record
from tests.table.records import NOW, any_pod, node_state


@pytest.mark.parametrize("tier", ["mid", "batch"])
@pytest.mark.parametrize(
    ("offer", "is_refused"),
    [(None, True), (Resources(), True), (Resources(cpu_millicores=1), True),
     (Resources(memory_bytes=0), False)],
)  # fmt: skip
def test_a_buffer_widens_only_an_offer_that_is_known(
    tier: str, offer: Resources | None, is_refused: bool
) -> None:
    """FUZZ_SEED=176970201: the record of a node of unknown usage has buffers without offers."""
    buffer = Resources(cpu_millicores=0, memory_bytes=1)
    offered = OfferedResources(
        node="a", as_of=format_time(NOW), generation=1, offset=0, epoch=1, window_seconds=30.0,
        mid=offer if tier == "mid" else None, batch=offer if tier == "batch" else None,
        mid_terms=MidPart(buffer=buffer), batch_terms=BatchPart(buffer=buffer),
    )  # fmt: skip
    asked = CountedPod(
        node="", uid="", cgroup_uid="", pod_class=tier, scalars={f"kubernetes.io/{tier}-memory": 1}
    )
    rules = rules_of(SETTINGS)
    table = Table(counting=rules.counting)
    table.put_resources(offered)
    world = oracle.World({}, {}, {}, rules.counting, {"a": offered})
    assert oracle.judge(world, "a", asked, NOW, STALE).refused == is_refused
    result = Decisions(table, rules).filter(as_record(asked), ["a"], NOW)
    assert (result.refused == ["a"]) == is_refused


def test_no_node_of_unknown_usage_is_preferred_to_one_of_certain_usage() -> None:
    """FUZZ_SEED=176970201: of `b` everything is known, but not its size."""
    node = TableNode(node="a", allocatable=Resources(memory_bytes=8 << 30))
    states = {
        "a": node_state("a", cpu=None, memory=0.0, cores=None, room=None),
        "b": node_state("b", cpu=0.0, memory=0.0, cores=None, room=None),
    }
    rules = rules_of(SETTINGS)
    table = Table(counting=rules.counting)
    table.put_node(node)
    for state in states.values():
        table.put_state(state)
    world = oracle.World(states, {"a": node}, {}, rules.counting)
    asked = CountedPod(node="", uid="", cgroup_uid="", pod_class="prod")
    expected = oracle.scores(world, ["a", "b"], asked, NOW, STALE)
    result = Decisions(table, rules).prioritize(any_pod(), ["a", "b"], NOW)
    assert result.percent.tolist() == expected.percent == [0, 0]
