"""A stale view widens nothing."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, Value, is_wider
from pipeline.processors.node_qos.claims import Decision
from pipeline.processors.node_qos.hold_back import HELD, hold_back

PATHS = ("kubepods", "kubepods/besteffort", "kubepods/besteffort/poda")


@st.composite
def decisions(draw: st.DrawFn) -> dict[Place, Decision]:
    made: dict[Place, Decision] = {}
    for path in draw(st.sets(st.sampled_from(PATHS))):
        knob = draw(st.sampled_from((Knob.CPU_QUOTA, Knob.CPUSET, Knob.CPU_IDLE)))
        value: Value
        if knob is Knob.CPUSET:
            value = draw(st.frozensets(st.integers(0, 7), min_size=1))
        elif knob is Knob.CPU_IDLE:
            value = draw(st.integers(0, 1))
        else:
            value = draw(st.integers(1000, 100_000) | st.just(UNLIMITED))
        made[Place(path, knob)] = Decision(value, ("cpu_suppression",), "room")
    return made


@given(decisions(), decisions())
def test_nothing_is_wider_than_what_was_written(
    now: dict[Place, Decision], written: dict[Place, Decision]
) -> None:
    held = hold_back(now, written)
    assert held.keys() == now.keys() | written.keys()
    for place, decision in held.items():
        before = written.get(place)
        assert before is None or not is_wider(place.knob, decision.value, before.value)
        # What is no wider is as it was decided.
        if place in now and (before is None or decision.why != HELD):
            assert decision == now[place]


def test_a_narrower_value_passes_and_a_vanished_one_stays() -> None:
    narrow, other = Place("a", Knob.CPU_QUOTA), Place("b", Knob.CPU_QUOTA)
    written = {place: Decision(50_000, ("x",), "before") for place in (narrow, other)}
    held = hold_back({narrow: Decision(20_000, ("x",), "now")}, written)
    assert held == {
        narrow: Decision(20_000, ("x",), "now"),
        other: Decision(50_000, ("x",), HELD),
    }
