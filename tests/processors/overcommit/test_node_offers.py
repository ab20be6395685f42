"""What windows come to for Mid and Batch: by hand, and by the laws that hold for any of them."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.join.sample_join import NodeObjects
from pipeline.processors.kubernetes.node_reservation import ANNOTATION as RESERVATION
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.processors.overcommit.mid import FORMULAS
from pipeline.processors.overcommit.node_offers import offers, records
from pipeline.processors.overcommit.window_columns import Prod
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import SYSTEM_TIER
from pipeline.topics.windows import Window
from tests.processors.joined import (
    NODE_ROW,
    OVERCOMMITS,
    VIEWS,
    Row,
    header,
    joined,
    known_pod,
    logged,
    pod_row,
    rows,
    view_of,
)

GIB = 1 << 30
AT = {"generation": 1, "offset": 7, "epoch": 3}
UNKNOWN = (float("nan"), float("nan"))


def amount(cores: float, gib: float) -> Resources:
    return Resources(cpu_millicores=round(cores * 1000), memory_bytes=round(gib * GIB))


def usage(cores: float, gib: float) -> Row:
    return {"cpu_cores_avg": cores, "memory_bytes_avg": gib * GIB}


def pod(uid: str, of: str, asked: Resources, **values: Any) -> PodRecord:
    return known_pod(uid, pod_class=of, requests=asked, **({"phase": "Running"} | values))


def compute(*windows: Window, peaks: Any = None, others: Any = ()) -> list[NodeResourcesRecord]:
    """`peaks` are of Prod, in cores and GiB, one for each window."""

    def prod(of: Any) -> Prod:
        units = np.array(of, float) * (1000, GIB)
        return Prod(np.maximum(0, units), units)

    decided = prod(peaks or [UNKNOWN] * len(windows))
    batch = WindowBatch(windows)
    found = offers(batch, decided, [decided, *map(prod, others)])
    return records(batch, found, ["percentile"] * len(windows), [AT] * len(windows))


RECORD = NodeRecord(
    node="node-1",
    capacity=amount(16, 32),
    allocatable=amount(15, 30),
    overcommit=Overcommit(
        cpu_reclaim_threshold_percent=100,
        memory_reclaim_threshold_percent=100,
        mid_unallocated_percent=0,
    ),
)
SYSTEM: Row = {"kind": "tier", "id": SYSTEM_TIER, "coverage": 1.0, **usage(0.5, 1)}


def with_overcommit(**values: Any) -> NodeRecord:
    assert RECORD.overcommit is not None
    changed = msgspec.structs.replace(RECORD.overcommit, **values)
    return msgspec.structs.replace(RECORD, overcommit=changed)


def shop_window(record: NodeRecord = RECORD, *more: PodRecord) -> Window:
    """4 of 16 cores and 8 of 32 GiB are used, of which Prod uses 2 and 4 and asked for 10 and 20,
    Mid uses 1 and 2."""
    pods = [
        pod("web", "prod", amount(10, 20)),
        pod("mid", "mid", amount(0, 0)),
        pod("old", "prod", amount(5, 5), phase="Succeeded"),
        *more,
    ]
    return logged(
        joined(
            {**NODE_ROW, **usage(4, 8)},
            SYSTEM,
            pod_row("web", **usage(2, 4)),
            pod_row("mid", **usage(1, 2)),
            view=view_of(*pods, record=record),
        )
    )


def test_terms_of_a_node_calculated_by_hand() -> None:
    (found,) = compute(shop_window(), peaks=[(4, 6)])
    mid, batch = found.mid_terms, found.batch_terms
    assert Resources() not in (*msgspec.structs.astuple(mid), *msgspec.structs.astuple(batch))
    assert (mid.allocated, mid.prod_peak, mid.reclaimable, mid.unused) == (
        amount(10, 20), amount(4, 6), amount(6, 14), amount(12, 24),
    )  # fmt: skip
    # The kubelet keeps 1 and 2, more than the system uses; Prod and Mid use 3 and 6. Of Mid's 6 and
    # 14 its pods use 1 and 2 already.
    assert (batch.outside, batch.used, batch.promised) == (
        amount(1, 2),
        amount(3, 6),
        amount(5, 12),
    )
    assert (found.mid, found.mid_lower_bound, found.batch) == (
        amount(6, 14), amount(6, 14), amount(16 - 1 - 3 - 5, 32 - 2 - 6 - 12),
    )  # fmt: skip


def test_without_promise_once_both_tiers_are_independent() -> None:
    (found,) = compute(shop_window(with_overcommit(promise_once=False)), peaks=[(4, 6)])
    assert (found.mid, found.batch) == (amount(6, 14), amount(12, 24))


def test_buffer_is_subtracted_from_both_tiers() -> None:
    (found,) = compute(shop_window(with_overcommit(buffer_percent=50)), peaks=[(4, 6)])
    assert (found.mid, found.mid_terms.buffer) == (amount(3, 7), amount(3, 7))
    assert found.batch == amount((16 - 1 - 3 - 2) / 2, (32 - 2 - 6 - 5) / 2)


def test_the_lower_bound_is_that_of_the_most_careful_predictor() -> None:
    (found,) = compute(shop_window(), peaks=[(4, 6)], others=[[(9, 3)], [UNKNOWN]])
    assert (found.mid, found.mid_lower_bound) == (amount(6, 14), amount(1, 14))


def test_unmeasured_pods_count_their_requests() -> None:
    new = [
        pod("new", "prod", amount(2, 3), phase="Pending"),
        pod("late", "none", amount(1, 1)),
        pod("done", "prod", amount(9, 9), phase="Failed"),
        pod("free", "batch", amount(9, 9)),
    ]
    window = shop_window(RECORD, *new)
    assert window.node.unmeasured == {
        "prod": amount(2, 3), "none": amount(1, 1), "batch": amount(9, 9),
    }  # fmt: skip
    (found,) = compute(window, peaks=[(4, 6)])
    # Nobody can say what they will leave.
    terms = found.mid_terms.allocated, found.mid_terms.prod_peak, found.batch_terms.used
    assert terms == (amount(13, 24), amount(4 + 3, 6 + 4), amount(6, 10))
    assert found.mid == found.mid_lower_bound == amount(6, 14)


AMOUNT = st.integers(0, 20)


@given(st.sampled_from(list(FORMULAS)), AMOUNT, AMOUNT, AMOUNT, AMOUNT, st.integers(0, 100))
def test_new_prod_pod_never_raises_mid(
    formula: str, cpu: int, memory: int, peak_cpu: int, peak_memory: int, share: int
) -> None:
    strategy = Overcommit(mid_formula=formula, mid_unallocated_percent=share)
    record = msgspec.structs.replace(RECORD, overcommit=strategy)
    new = pod("new", "prod", amount(cpu, memory), phase="Pending")
    peaks = [(peak_cpu, peak_memory)] * 2
    before, after = compute(
        shop_window(record), shop_window(record, new), peaks=peaks, others=[peaks]
    )
    for offered in ("mid", "mid_lower_bound", "batch"):
        was, now = getattr(before, offered), getattr(after, offered)
        assert now.cpu_millicores <= was.cpu_millicores
        assert now.memory_bytes <= was.memory_bytes
    if formula != "source" and peak_cpu < 10:
        assert before.mid
        assert (before.mid.cpu_millicores or 0) > 0


def starting_pod_window(seconds: float) -> Window:
    """Of a node with a pod that asks for 8 cores and uses them from within the window on."""
    big = pod("big", "prod", amount(8, 16))
    part = {"coverage": seconds / 30}
    return logged(
        joined(
            {**NODE_ROW, **usage(4, 8)}, SYSTEM, {**pod_row("big", **usage(8, 16)), **part},
            view=view_of(big, record=RECORD),
        )
    )  # fmt: skip


def test_starting_pod_does_not_count_as_a_small_pod() -> None:
    found = compute(starting_pod_window(3), starting_pod_window(30), peaks=[(8, 16)] * 2)
    assert [one.batch_terms.used for one in found] == [amount(8, 16)] * 2
    assert found[0].batch == found[1].batch


def test_reserved_capacity_is_not_unallocated() -> None:
    kept = {RESERVATION: '{"resources":{"cpu":"8","memory":"16Gi"}}'}
    strategy = Overcommit(mid_unallocated_percent=100)
    record = msgspec.structs.replace(RECORD, overcommit=strategy, annotations=kept)
    window = logged(joined({**NODE_ROW, **usage(0, 0)}, SYSTEM, view=view_of(record=record)))
    (found,) = compute(window, peaks=[(0, 0)])
    assert found.mid == amount(8, 16)


def test_usage_of_an_unknown_pod_counts() -> None:
    window = logged(
        joined(
            {**NODE_ROW, **usage(4, 8)},
            SYSTEM,
            pod_row("who", **usage(2, 4)),
            view=view_of(record=RECORD),
        )
    )
    (found,) = compute(window)
    assert (found.batch_terms.used, found.mid_terms.allocated) == (amount(2, 4), amount(0, 0))


@pytest.mark.parametrize(("of", "outside"), [("prod", 3), ("mid", 3), ("", 3), ("batch", 1)])
def test_host_applications_count_by_class_and_as_prod_without_one(of: str, outside: float) -> None:
    app: Row = {"kind": "host_app", "id": "nginx", "coverage": 1.0, **usage(2.5, 1)}
    record = msgspec.structs.replace(RECORD, host_apps={"nginx": of} if of else {})
    row = {**NODE_ROW, **usage(4, 8)}
    (found,) = compute(logged(joined(row, SYSTEM, app, view=view_of(record=record))))
    assert found.batch_terms.outside.cpu_millicores == outside * 1000


def test_nothing_is_reclaimable_without_a_peak() -> None:
    (found,) = compute(shop_window())
    offered = found.mid, found.mid_terms.prod_peak, found.batch
    assert offered == (amount(0, 0), Resources(), amount(12, 24))


@pytest.mark.parametrize("unknown", ["capacity", "allocatable"])
def test_a_node_of_unknown_size_has_no_offer(unknown: str) -> None:
    record = msgspec.structs.replace(RECORD, **{unknown: Resources()})
    (found,) = compute(shop_window(record), peaks=[(4, 6)])
    assert (found.mid, found.mid_lower_bound, found.batch) == (None, None, None)


def test_a_node_whose_usage_is_unknown_has_no_offer() -> None:
    row = {**NODE_ROW, "cpu_cores_avg": None}
    (found,) = compute(logged(joined(row, view=view_of(record=RECORD))))
    assert (found.mid, found.batch) == (None, None)
    assert found.mid_terms.buffer == found.batch_terms.buffer == Resources()


def test_nodes_of_different_formulas_do_not_affect_each_other() -> None:
    windows = [
        shop_window(with_overcommit(mid_formula=name)) for name in ("v1.6", "source", "proposal")
    ]
    together = compute(*windows, peaks=[(4, 6)] * 3)
    assert together == [compute(window, peaks=[(4, 6)])[0] for window in windows]


USED = st.tuples(*[st.floats(0, 12, allow_subnormal=False)] * 2)
CLASSES = st.sampled_from(["prod", "mid", "batch", "none"])
MEASURED = st.lists(st.tuples(CLASSES, AMOUNT, AMOUNT, st.none() | USED), max_size=5)


@given(OVERCOMMITS, MEASURED, USED, USED, USED)
def test_offers_fit_into_the_node(
    strategy: Overcommit, pods: list[Any], node: Any, peak: Any, other: Any
) -> None:
    record = msgspec.structs.replace(RECORD, overcommit=strategy)
    view = view_of(
        *(pod(f"p{i}", of, amount(cpu, gib)) for i, (of, cpu, gib, _) in enumerate(pods)),
        record=record,
    )
    rows_ = [pod_row(f"p{i}", **usage(*of)) for i, (_, _, _, of) in enumerate(pods) if of]
    window = logged(joined({**NODE_ROW, **usage(*node)}, SYSTEM, *rows_, view=view))
    (found,) = compute(window, peaks=[peak], others=[[other]])
    assert None not in (found.mid, found.mid_lower_bound, found.batch)
    for name in Resources.__struct_fields__:
        mid, least, batch, promised, most = (
            getattr(amounts, name)
            for amounts in (
                found.mid, found.mid_lower_bound, found.batch, found.batch_terms.promised,
                RECORD.capacity,
            )
        )  # fmt: skip
        kind = name.partition("_")[0]
        reclaim = getattr(strategy, f"{kind}_reclaim_threshold_percent")
        assert 0 <= least <= mid
        assert 0 <= batch <= most * max(reclaim, 0) // 100 + 1
        if strategy.promise_once:
            # What is promised to Mid beyond what its pods take is not promised to Batch, too.
            assert batch + promised <= max(most * reclaim // 100 + 1, promised)
        else:
            assert promised == 0


PEAKS = st.tuples(*[st.floats(0, 64) | st.just(float("nan"))] * 2)


@given(st.lists(st.tuples(VIEWS, rows(), PEAKS, PEAKS), min_size=1, max_size=3))
def test_offers_of_random_windows_are_unknown_or_within_capacity(
    cases: list[tuple[NodeObjects, list[Row], Any, Any]],
) -> None:
    windows = [
        logged(joined(*sample, view=view, of=header(f"n{i}")))
        for i, (view, sample, _, _) in enumerate(cases)
    ]
    of = [peaks for _, _, peaks, _ in cases], [[other for _, _, _, other in cases]]
    found = compute(*windows, peaks=of[0], others=of[1])
    for i, record in enumerate(found):
        assert decode_json(NodeResourcesRecord, encode_json(record)) == record
        assert record == compute(windows[i], peaks=[of[0][i]], others=[[of[1][0][i]]])[0]
        if record.mid is None:
            assert record.batch is record.mid_lower_bound is None
            continue
        assert None not in (record.batch, record.mid_lower_bound)
        for name in Resources.__struct_fields__:
            mid, least, batch = (
                getattr(amount, name)
                for amount in (record.mid, record.mid_lower_bound, record.batch)
            )
            assert 0 <= least <= mid
            assert batch >= 0
            # The strategies here have at most 200 percent.
            assert batch <= 2 * getattr(record.batch_terms.capacity, name)
