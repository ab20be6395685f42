"""The means of node pools against a slow reference."""

import math
import statistics
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.hot_nodes.pool_means import NEVER, has_moved, pool_means
from pipeline.times import format_time
from pipeline.topics.alerts import RULES
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.pool_means import PoolMeansRecord, RuleMean, check_pool_means

END_MS = 1_700_000_010_000
CPU = HotNodePolicy(pool="a", high_percent={"cpu": 20.0}, use_deviation_thresholds=True)
BOTH = HotNodePolicy(
    pool="b", high_percent={"cpu": 20.0, "memory": 10.0}, prod_high_percent={"cpu": 5.0},
    use_deviation_thresholds=True, usage="p95", span_seconds=600,
)  # fmt: skip


def means_of(
    *nodes: tuple[HotNodePolicy, float | None], ends: list[int] | None = None
) -> list[PoolMeansRecord]:
    """The records for nodes of this policy and usage of CPU."""
    percents = np.full((len(nodes), len(RULES)), np.nan)
    percents[:, 0] = [math.nan if cpu is None else cpu for _, cpu in nodes]
    end_ms = np.array([END_MS] * len(nodes) if ends is None else ends, np.int64)
    return [*pool_means([policy for policy, _ in nodes], percents, end_ms)]


def cpu(percent: float | None, known: int) -> dict[str, RuleMean]:
    return {"node_cpu": RuleMean(percent=percent, known_nodes=known)}


def test_each_pool_has_the_mean_of_its_nodes() -> None:
    other = msgspec.structs.replace(CPU, pool="c")
    first, second = means_of((CPU, 10.0), (other, 90.0), (CPU, 20.005))
    assert (first.pool, first.nodes, first.means) == ("a", 2, cpu(15.0, 2))
    assert (second.pool, second.nodes, second.means) == ("c", 1, cpu(90.0, 1))
    assert (first.at, first.usage, first.span_seconds) == ("2023-11-14T22:13:30Z", "average", 300)


def test_a_pool_of_equal_nodes_has_their_usage() -> None:
    (record,) = means_of(*[(CPU, 37.13)] * 1000)
    assert record.means == cpu(37.13, 1000)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ([None], cpu(None, 0)),
        ([10.0, None], cpu(10.0, 1)),
        ([10.0, None, None], cpu(None, 1)),
        ([10.0, 20.0, None, None], cpu(15.0, 2)),
        ([0.0, 0.0, None], cpu(0.0, 2)),
        # Absurd usage is unknown.
        ([10.0, 1e9], cpu(10.0, 1)),
        ([10.0, -1.0, math.inf], cpu(None, 1)),
    ],
)
def test_a_mean_needs_half_of_the_nodes(
    usage: list[float | None], expected: dict[str, RuleMean]
) -> None:
    (record,) = means_of(*((CPU, percent) for percent in usage))
    assert (record.nodes, record.means) == (len(usage), expected)


def test_the_date_is_that_of_the_newest_window() -> None:
    ends = [END_MS - 1000, NEVER, END_MS, END_MS - 90_000]
    (record,) = means_of(*[(CPU, 10.0)] * 4, ends=ends)
    assert record.at_ms == END_MS
    assert means_of((CPU, None), (CPU, None), ends=[NEVER, NEVER]) == []


def test_nodes_of_a_former_policy_count_as_unknown() -> None:
    former = msgspec.structs.replace(CPU, usage="peak")
    (record,) = means_of((former, 90.0), (CPU, 10.0), (CPU, 20.0))
    assert (record.usage, record.nodes, record.means) == ("average", 3, cpu(15.0, 2))


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ({}, False),
        ({"at": "2023-11-14T22:14:00Z", "nodes": 9}, False),
        ({"means": cpu(10.5, 3)}, False),
        ({"means": cpu(10.51, 3)}, True),
        ({"means": cpu(9.49, 3)}, True),
        ({"means": cpu(None, 1)}, True),
        ({"means": cpu(10.0, 2) | {"node_memory": RuleMean()}}, True),
        ({"means": {}}, True),
        ({"usage": "p95"}, True),
        ({"span_seconds": 600}, True),
    ],
)
def test_only_means_that_moved_are_published_at_once(changes: dict[str, Any], moved: bool) -> None:
    (before,) = means_of((CPU, 10.0), (CPU, 10.0))
    after = msgspec.structs.replace(before, **changes)
    assert (has_moved(before, after), has_moved(after, before)) == (moved, moved)


PERCENT = st.none() | st.sampled_from([0.0, 0.125, 30.0, 99.75, 1000.0, 1000.5, -0.5, 1e9])
NODES = st.lists(
    st.tuples(
        st.sampled_from([CPU, CPU, BOTH, msgspec.structs.replace(CPU, usage="peak")]),
        st.tuples(*[PERCENT] * 4),
        st.sampled_from([NEVER, END_MS, END_MS - 30_000, END_MS + 5_000]),
    ),
    max_size=12,
)


@given(NODES)
def test_means_equal_the_reference(
    nodes: list[tuple[HotNodePolicy, tuple[float | None, ...], int]],
) -> None:
    percents = np.array([[math.nan if v is None else v for v in row] for _, row, _ in nodes])
    found = pool_means(
        [policy for policy, _, _ in nodes], percents.reshape(len(nodes), 4),
        np.array([end for *_, end in nodes], np.int64),
    )  # fmt: skip
    assert [*found] == reference(nodes)


def reference(
    nodes: list[tuple[HotNodePolicy, tuple[float | None, ...], int]],
) -> list[PoolMeansRecord]:
    records = []
    for pool in ("a", "b"):
        own = [node for node in nodes if node[0].pool == pool]
        if not own or max(end for *_, end in own) == NEVER:
            continue
        kinds = sorted({policy.usage for policy, *_ in own})
        usage = max(kinds, key=lambda kind: sum(policy.usage == kind for policy, *_ in own))
        means: dict[str, RuleMean] = {}
        for column, rule in enumerate(RULES):
            if not any(_names(policy, rule) for policy, *_ in own):
                continue
            known = [
                value
                for policy, row, _ in own
                if policy.usage == usage
                and (value := row[column]) is not None
                and 0 <= value <= 1000
            ]
            mean = round(statistics.fmean(known), 2) if 2 * len(known) >= len(own) else None
            means[rule] = RuleMean(percent=mean, known_nodes=len(known))
        records.append(
            PoolMeansRecord(
                pool=pool, nodes=len(own), usage=usage,
                at=format_time(max(end for *_, end in own) / 1000),
                span_seconds=own[0][0].span_seconds, means=means,
            )
        )  # fmt: skip
    return records


def _names(policy: HotNodePolicy, rule: str) -> bool:
    scope, resource = rule.split("_")
    return resource in (policy.high_percent if scope == "node" else policy.prod_high_percent)


@given(NODES)
def test_readers_accept_every_record(
    nodes: list[tuple[HotNodePolicy, tuple[float | None, ...], int]],
) -> None:
    percents = np.array([[math.nan if v is None else v for v in row] for _, row, _ in nodes])
    for record in pool_means(
        [policy for policy, _, _ in nodes], percents.reshape(len(nodes), 4),
        np.array([end for *_, end in nodes], np.int64),
    ):  # fmt: skip
        read = decode_json(PoolMeansRecord, encode_json(record))
        assert read == record
        check_pool_means(read, END_MS, 60.0)
