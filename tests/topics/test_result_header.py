"""Results of a node are ordered by generation and offset, not by arrival."""

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.result_header import Result, supersedes

END = "2023-11-14T22:14:00Z"


def result(generation: int, offset: int, epoch: int = 0) -> Result:
    return Result(node="n", as_of=END, generation=generation, offset=offset, epoch=epoch)


@pytest.mark.parametrize(
    ("new", "known", "is_newer"),
    [
        (result(0, 0), None, True),
        (result(0, 6), result(0, 5), True),
        (result(0, 5), result(0, 6), False),
        (result(1, 0), result(0, 99), True),
        (result(0, 99), result(1, 0), False),
        # The same position is taken again from any writer.
        (result(0, 5, epoch=1), result(0, 5, epoch=2), True),
    ],
)
def test_results_are_ordered_by_generation_then_offset(
    new: Result, known: Result | None, is_newer: bool
) -> None:
    assert supersedes(new, known) is is_newer


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1), st.randoms())
def test_the_newest_wins_in_any_order_of_arrival(
    positions: list[tuple[int, int]], random: Random
) -> None:
    random.shuffle(positions)
    newest: Result | None = None
    for generation, offset in positions:
        new = result(generation, offset)
        if supersedes(new, newest):
            newest = new
    assert newest is not None
    assert (newest.generation, newest.offset) == max(positions)


def test_unset_fields_of_a_node_state_are_unknown_or_empty() -> None:
    state = NodeStateRecord(
        node="n", as_of=END, generation=1, offset=1, epoch=1,
        window_seconds=30.0, coverage=1.0,
    )  # fmt: skip
    state_fields = msgspec.to_builtins(state)
    unknown = {"cpu_cores": None, "memory_bytes": None}
    usages = ("allocatable", "capacity", "usage", "system_usage", "host_app_usage",
              "prod_reclaimable", "prod_peak")  # fmt: skip
    assert {name: state_fields[name] for name in usages} == dict.fromkeys(usages, unknown)
    never = [state_fields["counters"].pop(name) for name in ("last_gap_at", "last_bad_value_at")]
    assert (set(state_fields["counters"].values()), never) == ({0}, [None, None])
    rest = ("simulated", "node_known", "skew_seconds", "class_usage", "pods", "unknown_pods",
            "aggregated", "deviation", "predictor", "peaks")  # fmt: skip
    assert [state_fields[name] for name in rest] == [False, False, None, {}, 0, 0, {}, {}, "", {}]


@pytest.mark.parametrize("as_of", ["", "yesterday", "2024-02-30T00:00:00Z", "2024-02-01T00:00:00"])
def test_a_result_with_an_invalid_time_is_refused(as_of: str) -> None:
    data = encode_json(result(0, 5))
    assert decode_json(Result, data) == result(0, 5)
    with pytest.raises(InvalidRecordError, match="as_of"):
        decode_json(Result, data.replace(END.encode(), as_of.encode()))
