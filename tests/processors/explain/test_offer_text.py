"""What is printed of Mid and Batch can be computed again to its last digit, and unknown is said."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.explain.offer_text import explain_offers
from pipeline.processors.overcommit.mid import FORMULAS
from pipeline.topics.codec import encode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import Resources
from tests.processors.derivations import Checked, check, numbers
from tests.processors.joined import NODE_ROW, joined, logged, view_of
from tests.processors.overcommit.test_node_offers import (
    RECORD,
    SYSTEM,
    amount,
    compute,
    pod,
    shop_window,
    usage,
    with_overcommit,
)


def checked(record: NodeResourcesRecord) -> Checked:
    lines = explain_offers(record)
    return check(lines[1:], numbers(json.loads(encode_json(record))))


def results(record: NodeResourcesRecord) -> dict[str, float]:
    """The last result of each part, by its heading."""
    found, heading = {}, ""
    for line in explain_offers(record):
        if " for " in line and not line.startswith((" ", "what")):
            heading = line
        elif line.strip().startswith(("amount, ", "offered, ")):
            found[heading] = float(line.rpartition(" = ")[2].split()[0])
    return found


PERCENT = st.integers(0, 100)
STRATEGIES = st.builds(
    Overcommit,
    mid_formula=st.sampled_from([*FORMULAS, "of a newer build"]),
    mid_unallocated_percent=PERCENT,
    mid_reclaim_percent=PERCENT,
    mid_cpu_threshold_percent=PERCENT,
    mid_memory_threshold_percent=PERCENT,
    mid_reclaim_mode=st.sampled_from(["", "static"]),
    mid_static_cpu_reserved_percent=st.integers(0, 200),
    mid_static_memory_reserved_percent=st.integers(0, 20_000),
    cpu_reclaim_threshold_percent=st.integers(0, 20_000),
    memory_reclaim_threshold_percent=PERCENT,
    cpu_calculate_policy=st.sampled_from(["usage", "request", "maxUsageRequest", "?"]),
    memory_calculate_policy=st.sampled_from(["usage", "request", "maxUsageRequest", "?"]),
    batch_cpu_threshold_percent=st.none() | st.integers(0, 20_000),
    batch_memory_threshold_percent=st.none() | PERCENT,
    promise_once=st.booleans(),
    buffer_percent=PERCENT,
)


@given(STRATEGIES, st.integers(0, 16), st.integers(0, 32), st.booleans())
def test_every_line_can_be_recomputed(
    strategy: Overcommit, cpu: int, memory: int, is_known: bool
) -> None:
    record = msgspec.structs.replace(RECORD, overcommit=strategy)
    waiting = pod("waits", "prod", amount(1.5, 2.25), phase="Pending")
    peaks = [(cpu / 3, memory / 7)] if is_known else None
    (found,) = compute(shop_window(record, waiting), peaks=peaks)
    checked(found)
    assert found.mid is not None
    assert found.batch is not None
    assert results(found) == {
        "cpu for mid": found.mid.cpu_millicores,
        "memory for mid": found.mid.memory_bytes,
        "cpu for batch": found.batch.cpu_millicores,
        "memory for batch": found.batch.memory_bytes,
    }


def test_offer_of_a_node_in_full() -> None:
    (found,) = compute(shop_window(with_overcommit(buffer_percent=50)), peaks=[(4, 6)])
    lines = explain_offers(found, now=0, resources=["cpu"])
    assert lines[0].startswith(f"what node node-1 has for lower tiers, as of {found.as_of}, -")
    assert lines[1:] == [
        "",
        "cpu for mid",
        "  formula: v1.6",
        "  allocatable: 15000 m",
        "  allocated: 10000 m",
        "  unused: 12000 m",
        "  unallocated: 5000 m",
        "  limit, the most that the policy allows for Mid: 15000 m",
        "  prod_peak, with margin and what was not measured: 4000 m",
        "  reclaimable, min(max(allocated - prod_peak, 0), unused): "
        "min(max(10000 - 4000, 0), 12000) = 6000 m",
        "  amount, min(reclaimable, limit) + trunc(unallocated * percent / 100): "
        "min(6000, 15000) + trunc(5000 * 0 / 100) = 6000 m",
        "  buffer, held back: 3000 m",
        "  offered, amount - buffer: 6000 - 3000 = 3000 m",
        "  if the record is late, at most: 3000 m",
        "",
        "cpu for batch",
        "  policy: usage",
        "  capacity: 16000 m",
        "  margin: 0 m",
        "  promised: 2000 m",
        "  outside: 1000 m",
        "  used: 3000 m",
        "  taken, outside + used: 1000 + 3000 = 4000 m",
        "  amount, max(capacity - margin - taken - promised, 0): "
        "max(16000 - 0 - 4000 - 2000, 0) = 10000 m",
        "  buffer, held back: 5000 m",
        "  offered, amount - buffer: 10000 - 5000 = 5000 m",
        "",
        "how much of it a Node offers also follows from its annotations, its age and the last "
        "write: see docs/reference/actuator.md",
    ]


@pytest.mark.parametrize("tier", ["mid", "batch"])
def test_unknown_size_or_usage_is_stated(tier: str) -> None:
    sized = msgspec.structs.replace(RECORD, capacity=Resources())
    silent: dict[str, Any] = {**NODE_ROW, **usage(4, 8), "cpu_cores_avg": None}
    for window in (shop_window(sized), logged(joined(silent, SYSTEM, view=view_of(record=RECORD)))):
        (found,) = compute(window, peaks=[(4, 6)])
        checked(found)
        text = "\n".join(explain_offers(found, tiers=[tier]))
        assert text.count("offered: unknown: ") == 2
        assert " m\n" not in text


def test_unknown_peak_of_prod_is_stated() -> None:
    (found,) = compute(shop_window())
    text = "\n".join(explain_offers(found, resources=["cpu"]))
    assert "prod_peak: unknown: percentile has no peak of Prod" in text
