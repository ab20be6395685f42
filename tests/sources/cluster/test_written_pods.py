"""What is remembered of pods, against a dictionary that remembers all of it."""

import uuid

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pipeline.sources.cluster.written_pods import Change, Seen, _mix, _mixed

UIDS = st.sampled_from(
    [str(uuid.UUID(int=i << 100 | i)) for i in range(40)]
    + ["static-pod", "", "00000000-0000-0000-0000-00000000000A", "x" * 36]
    # What Python would read as the number of the first one.
    + [
        "0000000-00000-0000-0000-000000000000",
        "\N{ARABIC-INDIC DIGIT ZERO}" + str(uuid.UUID(int=0))[1:],
    ]
    + ["0_000000-0000-0000-0000-00000000000", "-" * 4 + "0" * 32]
)
NODES = st.sampled_from(["", *(f"n{number}" for number in range(20))])
VALUES = st.sampled_from([b"", b"a", b"b"])


class Remembers(RuleBasedStateMachine):
    """Any run of calls gives what a dictionary gives."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Seen()
        self.known: dict[str, tuple[str, bytes, bool]] = {}

    @rule(uid=UIDS, node=NODES, value=VALUES)
    def put(self, uid: str, node: str, value: bytes) -> None:
        before = self.known.get(uid)
        expected = Change(
            before is None or before[:2] != (node, value), None if before is None else before[0]
        )
        assert self.seen.put(uid, node, value) == expected
        self.known[uid] = node, value, True

    @rule(uid=UIDS)
    def keep(self, uid: str) -> None:
        self.seen.keep(uid)
        if uid in self.known:
            self.known[uid] = *self.known[uid][:2], True

    @rule(uid=UIDS)
    def drop(self, uid: str) -> None:
        before = self.known.pop(uid, None)
        assert self.seen.drop(uid) == (None if before is None else before[0])

    @rule()
    def forget(self) -> None:
        self.seen._forget_names()

    @rule()
    def begin(self) -> None:
        self.seen.begin()
        self.known = {uid: (node, value, False) for uid, (node, value, _) in self.known.items()}

    @rule()
    def complete(self) -> None:
        gone = {uid: node for uid, (node, _, listed) in self.known.items() if not listed}
        assert dict(self.seen.missing()) == gone
        for uid in gone:
            self.seen.drop(uid)
            del self.known[uid]

    @invariant()
    def as_many(self) -> None:
        assert len(self.seen) == len(self.known)


TestRemembers = Remembers.TestCase
TestRemembers.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_it_grows_and_is_emptied_without_losing_any() -> None:
    seen, uids = Seen(), [str(uuid.uuid4()) for _ in range(20_000)]
    for i, uid in enumerate(uids):
        assert seen.put(uid, f"n{i % 7}", uid.encode()) == (True, None)
    assert len(seen) == len(uids)
    for i, uid in enumerate(uids):
        assert seen.put(uid, f"n{i % 7}", uid.encode()) == (False, f"n{i % 7}")
    for i, uid in enumerate(uids):
        assert seen.drop(uid) == f"n{i % 7}"
    assert len(seen) == 0
    # Places of deleted pods are used again, however often pods come and go.
    most = seen.nbytes
    for uid in uids:
        seen.put(uid, "", b"")
        seen.drop(uid)
    assert seen.nbytes <= most


def test_names_of_nodes_that_are_gone_are_not_kept() -> None:
    """An autoscaler makes new ones for ever."""
    seen, kept = Seen(), [str(uuid.uuid4()) for _ in range(50)]
    for i, uid in enumerate(kept):
        seen.put(uid, f"stays-{i}", b"")
    for i in range(20_000):
        uid = str(uuid.UUID(int=i))
        assert seen.put(uid, f"comes-and-goes-{i}", b"") == (True, None)
        assert seen.drop(uid) == f"comes-and-goes-{i}"
    assert len(seen._names) == len(seen._numbers) < 2000
    for i, uid in enumerate(kept):
        assert seen.put(uid, f"stays-{i}", b"") == (False, f"stays-{i}")


def test_a_pod_takes_few_bytes() -> None:
    seen = Seen()
    for i in range(50_000):
        seen.put(str(uuid.UUID(int=i << 64 | i)), "n", b"")
    assert seen.nbytes / len(seen) < 150


@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 2), min_size=1))
def test_one_and_many_begin_at_the_same_place(keys: list[tuple[int, int]]) -> None:
    high, low = (np.array(column, np.uint64) for column in zip(*keys, strict=True))
    with np.errstate(over="ignore"):
        assert _mixed(high, low).tolist() == [_mix(*key) for key in keys]


@pytest.mark.parametrize("rounds", [1, 255, 256, 257])
def test_lists_are_told_apart_for_a_while(rounds: int) -> None:
    seen = Seen()
    seen.put("a", "n", b"")
    for _ in range(rounds):
        seen.begin()
    seen.keep("a")
    assert not list(seen.missing())
