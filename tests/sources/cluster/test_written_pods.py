"""The table of written pods equals a dictionary."""

import uuid

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pipeline.sources.cluster.written_pods import Change, WrittenPods, mix, mix_arrays

UIDS = st.sampled_from(
    [str(uuid.UUID(int=i << 100 | i)) for i in range(40)]
    + ["static-pod", "", "00000000-0000-0000-0000-00000000000A", "x" * 36]
    # Python would parse these as the number of the first uid.
    + [
        "0000000-00000-0000-0000-000000000000",
        "\N{ARABIC-INDIC DIGIT ZERO}" + str(uuid.UUID(int=0))[1:],
    ]
    + ["0_000000-0000-0000-0000-00000000000", "-" * 4 + "0" * 32]
)
NODES = st.sampled_from(["", *(f"n{number}" for number in range(20))])
VALUES = st.sampled_from([b"", b"a", b"b"])


class WrittenPodsMachine(RuleBasedStateMachine):
    """Any sequence of calls returns what a dictionary returns."""

    def __init__(self) -> None:
        super().__init__()
        self.written = WrittenPods()
        self.known: dict[str, tuple[str, bytes, bool]] = {}

    @rule(uid=UIDS, node=NODES, value=VALUES)
    def put(self, uid: str, node: str, value: bytes) -> None:
        before = self.known.get(uid)
        expected = Change(
            before is None or before[:2] != (node, value), None if before is None else before[0]
        )
        assert self.written.put(uid, node, value) == expected
        self.known[uid] = node, value, True

    @rule(uid=UIDS)
    def mark_listed(self, uid: str) -> None:
        self.written.mark_listed(uid)
        if uid in self.known:
            self.known[uid] = *self.known[uid][:2], True

    @rule(uid=UIDS)
    def drop(self, uid: str) -> None:
        before = self.known.pop(uid, None)
        assert self.written.drop(uid) == (None if before is None else before[0])

    @rule()
    def forget_nodes(self) -> None:
        self.written.forget_unused_nodes()

    @rule()
    def begin(self) -> None:
        self.written.begin()
        self.known = {uid: (node, value, False) for uid, (node, value, _) in self.known.items()}

    @rule()
    def complete(self) -> None:
        missing = {uid: node for uid, (node, _, listed) in self.known.items() if not listed}
        assert dict(self.written.missing()) == missing
        for uid in missing:
            self.written.drop(uid)
            del self.known[uid]

    @invariant()
    def sizes_are_equal(self) -> None:
        assert len(self.written) == len(self.known)


TestWrittenPods = WrittenPodsMachine.TestCase
TestWrittenPods.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_table_grows_and_shrinks_without_losing_pods() -> None:
    written, uids = WrittenPods(), [str(uuid.uuid4()) for _ in range(20_000)]
    for is_new in (True, False):
        for i, uid in enumerate(uids):
            before = None if is_new else f"n{i % 7}"
            assert written.put(uid, f"n{i % 7}", uid.encode()) == (is_new, before)
        assert len(written) == len(uids)
    for i, uid in enumerate(uids):
        assert written.drop(uid) == f"n{i % 7}"
    assert len(written) == 0
    # Slots of deleted pods are reused.
    most = written.nbytes
    for uid in uids:
        written.put(uid, "", b"")
        written.drop(uid)
    assert written.nbytes <= most


def test_names_of_deleted_nodes_are_forgotten() -> None:
    """An autoscaler makes new names for ever."""
    written, lasting = WrittenPods(), [str(uuid.uuid4()) for _ in range(50)]
    for i, uid in enumerate(lasting):
        written.put(uid, f"stays-{i}", b"")
    for i in range(20_000):
        uid = str(uuid.UUID(int=i))
        assert written.put(uid, f"comes-and-goes-{i}", b"") == (True, None)
        assert written.drop(uid) == f"comes-and-goes-{i}"
    assert written.num_node_names < 2000
    for i, uid in enumerate(lasting):
        assert written.put(uid, f"stays-{i}", b"") == (False, f"stays-{i}")


def test_pod_takes_less_than_150_bytes() -> None:
    written = WrittenPods()
    for i in range(50_000):
        written.put(str(uuid.UUID(int=i << 64 | i)), "n", b"")
    assert written.nbytes / len(written) < 150


@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 2), min_size=1))
def test_mix_of_arrays_equals_mix_of_numbers(keys: list[tuple[int, int]]) -> None:
    high, low = (np.array(column, np.uint64) for column in zip(*keys, strict=True))
    with np.errstate(over="ignore"):
        assert mix_arrays(high, low).tolist() == [mix(*key) for key in keys]


@pytest.mark.parametrize("rounds", [1, 255, 256, 257])
def test_marked_pod_is_not_missing_after_many_lists(rounds: int) -> None:
    written = WrittenPods()
    written.put("a", "n", b"")
    for _ in range(rounds):
        written.begin()
    written.mark_listed("a")
    assert not list(written.missing())
