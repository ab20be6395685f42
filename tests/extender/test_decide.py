"""Both answers over tables of any content, against a plain loop over the records."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pipeline.extender.decide import Policy, judge, score
from pipeline.settings import ExtenderSettings
from pipeline.table import Table
from pipeline.topics.node_state import NodeStateRecord
from tests.table.records import NOW, node_state

POLICY = Policy({"cpu": 65.0, "memory": 95.0}, 180.0)

amounts = st.none() | st.sampled_from([0.0, -1.0, 1.0, 2.6, 2.62, 4.0, 1e300]) | st.floats(0, 16)
states = st.builds(
    node_state,
    st.sampled_from("abcdef"),
    cpu=amounts,
    memory=amounts,
    cores=amounts,
    room=amounts,
    age=st.sampled_from([0.0, 179.0, 180.0, 1e6, -30.0, -180.0]),
    offset=st.integers(0, 5),
)


def percent(used: float | None, room: float | None) -> float | None:
    if used is None or room is None or used < 0 or room <= 0:
        return None
    return used / room * 100.0


def refused(state: NodeStateRecord, age: float) -> bool:
    if abs(age) >= 180.0:
        return False
    cpu = percent(state.usage.cpu_cores, state.allocatable.cpu_cores)
    memory = percent(state.usage.memory_bytes, state.allocatable.memory_bytes)
    return (cpu is not None and cpu + 0.5 >= 66) or (memory is not None and memory + 0.5 >= 96)


@given(st.lists(states, max_size=12))
def test_filter_equals_a_loop_over_the_newest_records(given_states: list[NodeStateRecord]) -> None:
    table = Table()
    newest: dict[str, NodeStateRecord] = {}
    for state in given_states:
        table.put_state(state)
        if state.node not in newest or state.offset >= newest[state.node].offset:
            newest[state.node] = state
    names = list("fedcbaz")
    judgement = judge(table, names, NOW, POLICY)
    ages = {name: float(table.ages(table.lookup([name]), NOW)[0]) for name in names}
    expected = [name for name in names if name in newest and refused(newest[name], ages[name])]
    assert list(judgement.refused) == expected
    assert sum(judgement.counts().values()) == len(names)
    for name, reason in judgement.refused.items():
        assert reason.startswith(f"{name}: ")
        assert "of allocatable is over the" in reason
    scores = score(table, names, NOW, POLICY)
    assert all(0 <= value <= 10 for value in scores)
    for name, value in zip(names, scores, strict=True):
        if name not in newest or abs(ages[name]) >= 180.0:
            assert value == 0


def test_less_use_never_scores_less() -> None:
    table = Table()
    names = [f"n{i}" for i in range(41)]
    for i, name in enumerate(names):
        table.put_state(node_state(name, cpu=i / 10, memory=i / 10, cores=4.0, room=4.0))
    scores = score(table, names, NOW, POLICY)
    assert scores == sorted(scores, reverse=True)
    assert (scores[0], scores[-1]) == (10, 0)


def test_no_names_no_answer() -> None:
    assert judge(Table(), [], NOW, POLICY).refused == {}
    assert score(Table(), [], NOW, POLICY) == []


def test_thresholds_come_from_the_settings() -> None:
    settings = ExtenderSettings(cpu_threshold_percent=10.0, memory_threshold_percent=0.0)
    table = Table()
    table.put_state(msgspec.structs.replace(node_state("a", cpu=0.5, memory=1e15)))
    judgement = judge(table, ["a"], NOW, Policy.of(settings))
    assert judgement.refused == {
        "a": "a: cpu usage 12.5% of allocatable is over the 10% threshold (window ended 10 s ago)"
    }
