"""Arrivals of a plan are counted once, also those that it takes back."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.descheduling.landing import Arrival, ArrivalChanges


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), max_size=30))
def test_changes_sum_up_to_the_arrivals(steps: list[tuple[int, int, bool]]) -> None:
    """A plan takes back some of the last arrivals and appends others, which may be equal ones."""
    changes, arrivals = ArrivalChanges(), list[Arrival]()
    counted: dict[int, int] = {}
    seen = added = 0
    for taken_back, appended, is_asked in steps:
        del arrivals[max(len(arrivals) - taken_back, 0) :]
        arrivals += [Arrival(pod, 0) for pod in range(appended)]
        added += appended
        if not is_asked:
            continue
        for arrival, count in changes.since_last(arrivals):
            counted[arrival.pod] = counted.get(arrival.pod, 0) + count
            seen += 1
        pods = [arrival.pod for arrival in arrivals]
        assert {pod: n for pod, n in counted.items() if n} == {pod: pods.count(pod) for pod in pods}
    assert seen <= 2 * added
