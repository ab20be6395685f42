"""What a node offers by the age of what is known: never more for being older."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.kubernetes.object_records import ORIGIN
from pipeline.processors.overcommit.offer_decision import Offer, OfferInputs, offers_now
from pipeline.processors.overcommit.status_patch import ABSENT
from pipeline.processors.overcommit.third_party import ALLOCATIONS
from pipeline.processors.policy.normalization import RATIO
from pipeline.times import format_time
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import BATCH, Resources
from tests.processors.overcommit.fleets import AS_OF, resources_record

NOTHING = (ABSENT,) * 4


def amount(cpu: int, memory: int) -> Resources:
    return Resources(cpu_millicores=cpu, memory_bytes=memory)


def computed(**values: Any) -> NodeResourcesRecord:
    amounts = {
        "mid": amount(4000, 400), "mid_lower_bound": amount(1000, 100), "batch": amount(2000, 200),
    }  # fmt: skip
    return resources_record(**(amounts | values))


def inputs(**values: Any) -> OfferInputs:
    fields: dict[str, Any] = {
        "policy": Overcommit(), "resources": computed(), "annotations": {},
        "amounts": NOTHING, "unchanged_seconds": 0.0,
    }  # fmt: skip
    return OfferInputs(**(fields | values))


def origin_text(cpu: int, memory: int) -> str:
    batch = {"kubernetes.io/batch-cpu": str(cpu), "kubernetes.io/batch-memory": str(memory)}
    return json.dumps({"resources": batch}, separators=(",", ":"))


def allocations(cpu: int, memory: int) -> str:
    """The annotation of third parties that have these amounts of Batch."""
    batch = dict(zip(BATCH, (cpu, memory), strict=True))
    return json.dumps({"allocations": [{"priority": "koord-batch", "resources": batch}]})


def offer(of: OfferInputs, age: float = 0.0) -> Offer:
    (found,) = offers_now([of], AS_OF + age)
    return found


def test_fresh_amounts_are_offered_unchanged() -> None:
    assert offer(inputs()) == Offer(
        (2000, 200, 4000, 400),
        '{"resources":{"kubernetes.io/batch-cpu":"2000","kubernetes.io/batch-memory":"200"}}',
        f"as of {format_time(AS_OF)}",
        True,
        (),
    )


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (-3600.0, NOTHING),
        (-900.0, (2000, 150, 1000, 100)),
        (-300.0, (2000, 200, 4000, 400)),
        (300.0, (2000, 200, 4000, 400)),
        (300.001, (2000, 150, 1000, 100)),
        (900.0, (2000, 150, 1000, 100)),
        (900.001, NOTHING),
        (1e12, NOTHING),
    ],
)
def test_late_record_offers_the_lower_bound_and_stale_record_nothing(
    age: float, expected: tuple[int, ...]
) -> None:
    assert offer(inputs(amounts=(3000, 150, 4000, 400)), age).amounts == expected


def test_late_record_offers_no_more_to_third_parties() -> None:
    party, origin = allocations(1000, 100), origin_text(1500, 300)
    of = inputs(annotations={ALLOCATIONS: party, ORIGIN: origin}, amounts=(500, 200, 4000, 400))
    assert offer(of, 0).origin == offer(inputs()).origin
    found = offer(of, 600)
    assert found.amounts == (500, 100, 1000, 100)
    assert '"kubernetes.io/batch-cpu":"1500","kubernetes.io/batch-memory":"200"' in found.origin
    unsaid = offer(of._replace(annotations={ALLOCATIONS: party}), 600)
    assert '"kubernetes.io/batch-cpu":"500"' in unsaid.origin


@pytest.mark.parametrize(("age", "is_fresh"), [(299, True), (600, True), (601, False)])
def test_record_of_long_windows_is_fresh_until_the_next_can_arrive(
    age: float, is_fresh: bool
) -> None:
    of = inputs(
        policy=Overcommit(degrade_time_minutes=3, update_time_threshold_seconds=20),
        resources=computed(window_seconds=300.0),
    )
    assert offer(of, age).why.startswith("as of") is is_fresh
    assert offer(of, age).why.startswith("stale") is not is_fresh


@pytest.mark.parametrize(
    ("window", "age", "is_late"), [(0, 21, True), (30, 60, False), (30, 61, True)]
)
def test_record_is_not_late_before_the_next_window_can_arrive(
    window: float, age: float, is_late: bool
) -> None:
    of = inputs(
        policy=Overcommit(update_time_threshold_seconds=20),
        resources=computed(window_seconds=float(window)),
    )
    assert offer(of, age).why.startswith("late") is is_late


def test_late_record_starts_and_raises_no_offer() -> None:
    assert offer(inputs(), 600).amounts == NOTHING
    assert offer(inputs(amounts=(ABSENT, 0, 500, 1)), 600).amounts == (ABSENT, 0, 500, 1)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"policy": None}, "colocation is off"),
        ({"resources": None}, "no resources record"),
        ({"resources": computed(mid=None)}, "unknown"),
        ({"resources": computed(batch=None)}, "unknown"),
    ],
)
def test_an_offer_without_record_or_colocation_is_removed(
    changed: dict[str, Any], why: str
) -> None:
    found = offer(inputs(amounts=(1, 1, 1, 1), **changed))
    assert (found.amounts, found.is_due) == (NOTHING, True)
    assert why in found.why
    assert not offer(inputs(**changed)).is_due


def test_small_changes_wait_and_equal_amounts_are_not_written() -> None:
    near = inputs(amounts=(2100, 200, 4000, 400), annotations={ORIGIN: offer(inputs()).origin})
    assert not offer(near).is_due
    assert offer(near._replace(unchanged_seconds=301.0)).is_due
    assert offer(near._replace(unchanged_seconds=math.nan)).is_due
    same = near._replace(amounts=(2000, 200, 4000, 400), unchanged_seconds=math.nan)
    assert not offer(same).is_due


@pytest.mark.parametrize(
    "text", [None, "{", '{"resources":{}}', '{"resources":{"kubernetes.io/batch-cpu":"3000"}}']
)
def test_origin_is_written_where_third_parties_have_all_of_batch(text: str | None) -> None:
    said = {ALLOCATIONS: allocations(9000, 900)} | ({} if text is None else {ORIGIN: text})
    of = inputs(annotations=said, amounts=(0, 0, 4000, 400))
    found = offer(of)
    assert found.amounts == (0, 0, 4000, 400)
    assert found.is_due
    assert not offer(of._replace(writes_origin=False)).is_due
    assert not offer(of._replace(annotations={**said, ORIGIN: found.origin})).is_due


def test_valid_annotations_of_third_parties_count() -> None:
    party = (
        '{"allocations":[{"name":"yarn","priority":"koord-batch",'
        '"resources":{"kubernetes.io/batch-cpu":"500"}}]}'
    )
    found = offer(inputs(annotations={RATIO: "1.20", ALLOCATIONS: party}))
    assert found.amounts == (1900, 200, 4000, 400)
    assert '"kubernetes.io/batch-cpu":"2400"' in found.origin
    assert offer(inputs(annotations={RATIO: "x"})).amounts == (2000, 200, 4000, 400)
    assert len(offer(inputs(annotations={RATIO: "x", ALLOCATIONS: "{"})).problems) == 2


@pytest.mark.parametrize(
    ("origin", "amounts", "expected", "expected_origin"),
    [
        # They had 1200 and 50 of it when that could be read.
        (origin_text(1900, 150), (700, 100), (700, 100), origin_text(1900, 150)),
        (origin_text(9000, 900), (7800, 850), (800, 150), origin_text(2000, 200)),
        # All of it was theirs, and maybe more.
        (origin_text(500, 50), (0, 0), (0, 0), origin_text(500, 50)),
        # What they had is not known: no more than there is.
        (None, (700, 300), (700, 200), origin_text(700, 200)),
        ("{", (3000, 300), (2000, 200), origin_text(2000, 200)),
        (origin_text(1900, 150), (ABSENT, ABSENT), (ABSENT, ABSENT), origin_text(1900, 150)),
    ],
)
def test_third_parties_retain_their_part_while_their_annotation_is_invalid(
    origin: str | None, amounts: tuple[int, int], expected: tuple[int, int], expected_origin: str
) -> None:
    annotations = {ALLOCATIONS: "{"} | ({} if origin is None else {ORIGIN: origin})
    found = offer(inputs(annotations=annotations, amounts=(*amounts, 1, 1)))
    # Third parties have no share of Mid.
    assert found.amounts == (*expected, 4000, 400)
    assert found.origin == expected_origin
    # Decided again it says the same.
    after = inputs(annotations={**annotations, ORIGIN: found.origin}, amounts=found.amounts)
    assert offer(after).amounts == found.amounts
    assert not offer(after).is_due


PARTIES = st.tuples(st.integers(0, 3000), st.integers(0, 300))


@given(PARTIES, st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 400)), min_size=1))
def test_batch_does_not_grow_while_the_annotation_is_invalid(
    party: tuple[int, int], batches: list[tuple[int, int]]
) -> None:
    """Whatever Batch becomes meanwhile, unless all of it was theirs: then no more is known."""
    text = allocations(*party)
    now = offer(
        inputs(resources=computed(batch=amount(5000, 500)), annotations={ALLOCATIONS: text})
    )
    assert now.amounts[:2] == (5000 - party[0], 500 - party[1])
    for cpu, memory in batches:
        of = inputs(resources=computed(batch=amount(cpu, memory)), amounts=now.amounts)
        read, unread = (
            offer(of._replace(annotations={ALLOCATIONS: said, ORIGIN: now.origin}))
            for said in (text, "{")
        )
        assert all(a <= b for a, b in zip(unread.amounts, now.amounts, strict=True))
        assert all(a <= b for a, b in zip(unread.amounts, read.amounts, strict=True))
        now = unread


AMOUNTS = st.builds(amount, st.integers(0, 10**6), st.integers(0, 2**45))
ON_NODE = st.lists(st.integers(-1, 10**6), min_size=4, max_size=4)


@given(AMOUNTS, AMOUNTS, AMOUNTS, ON_NODE, st.floats(-100, 2000), st.floats(0, 2000))
def test_lagging_actuator_offers_no_more(
    mid: Resources, least: Resources, batch: Resources, on_node: list[int], age: float, lag: float
) -> None:
    bound = amount(
        min(mid.cpu_millicores or 0, least.cpu_millicores or 0),
        min(mid.memory_bytes or 0, least.memory_bytes or 0),
    )
    of = inputs(
        resources=computed(mid=mid, mid_lower_bound=bound, batch=batch), amounts=tuple(on_node)
    )
    now, later = offer(of, age), offer(of, age + lag)
    for before, after in zip(now.amounts, later.amounts, strict=True):
        assert after <= before
    if age + lag > Overcommit().update_time_threshold_seconds:
        assert all(one <= there for one, there in zip(later.amounts, on_node, strict=True))


@given(st.lists(st.tuples(ON_NODE, st.floats(0, 2000)), max_size=5))
def test_nodes_of_one_call_do_not_affect_each_other(cases: list[tuple[list[int], float]]) -> None:
    of = [inputs(amounts=tuple(a), unchanged_seconds=s) for a, s in cases]
    assert offers_now(of, AS_OF + 400) == [offer(one, 400) for one in of]
