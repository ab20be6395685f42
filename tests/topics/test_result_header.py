"""Readers keep the newer result of a node: by generation and offset, not by arrival."""

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


def test_anything_supersedes_nothing() -> None:
    assert supersedes(result(0, 0), None)


def test_order_is_generation_then_offset() -> None:
    assert supersedes(result(0, 6), result(0, 5))
    assert not supersedes(result(0, 5), result(0, 6))
    assert supersedes(result(1, 0), result(0, 99))
    assert not supersedes(result(0, 99), result(1, 0))


def test_the_same_position_written_again_is_taken_whoever_wrote_it() -> None:
    assert supersedes(result(0, 5, epoch=1), result(0, 5, epoch=2))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1), st.randoms())
def test_the_newest_wins_in_any_order_of_arrival(
    positions: list[tuple[int, int]], random: Random
) -> None:
    random.shuffle(positions)
    kept: Result | None = None
    for generation, offset in positions:
        new = result(generation, offset)
        if supersedes(new, kept):
            kept = new
    assert kept is not None
    assert (kept.generation, kept.offset) == max(positions)


def test_what_a_node_state_does_not_say_is_unknown_or_none() -> None:
    state = NodeStateRecord(
        node="n", as_of=END, generation=1, offset=1, epoch=1,
        window_seconds=30.0, coverage=1.0,
    )  # fmt: skip
    said = msgspec.to_builtins(state)
    unknown = {"cpu_cores": None, "memory_bytes": None}
    usages = ("allocatable", "capacity", "usage", "system_usage", "host_app_usage",
              "prod_reclaimable", "prod_peak")  # fmt: skip
    assert {name: said[name] for name in usages} == dict.fromkeys(usages, unknown)
    never = [said["counters"].pop(name) for name in ("last_gap_at", "last_bad_value_at")]
    assert (set(said["counters"].values()), never) == ({0}, [None, None])
    rest = ("simulated", "node_known", "skew_seconds", "class_usage", "pods", "unknown_pods",
            "aggregated", "deviation", "predictor", "peaks")  # fmt: skip
    assert [said[name] for name in rest] == [False, False, None, {}, 0, 0, {}, {}, "", {}]


@pytest.mark.parametrize("as_of", ["", "yesterday", "2024-02-30T00:00:00Z", "2024-02-01T00:00:00"])
def test_a_result_as_of_no_time_is_not_read(as_of: str) -> None:
    data = encode_json(result(0, 5))
    assert decode_json(Result, data) == result(0, 5)
    with pytest.raises(InvalidRecordError, match="as_of"):
        decode_json(Result, data.replace(END.encode(), as_of.encode()))
