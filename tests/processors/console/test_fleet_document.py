"""The fleet document has every node once, in order, with whole amounts and null for unknown."""

import gzip
import math
from typing import Any

import msgspec
import numpy as np

from pipeline.processors.console.encoded_document import encode_document
from pipeline.processors.console.fleet_document import MEBIBYTE, Fleet, FleetColumns, fleet_document
from pipeline.topics.alerts import OpenAlert

AMOUNTS = ("usage", "peak", "allocatable", "mid", "batch")
ALERT = OpenAlert(rule="node_cpu", severity="critical", since="2023-11-14T22:13:00Z")


def columns(nodes: int, **more: Any) -> FleetColumns:
    """Nodes in reverse order of their names; each amount is another."""
    ramp = np.arange(nodes, dtype=np.float64)
    usual = FleetColumns(
        names=[f"node-{nodes - row:05}.eu-central-1.compute.internal" for row in range(nodes)],
        pools=["ab"[row % 2] for row in range(nodes)],
        alerts=[() for _ in range(nodes)],
        as_of_seconds=1_700_000_000.0 + ramp,
        is_fresh=ramp % 2 == 0,
        cpu={name: 1000.4 * (index + 1) + ramp for index, name in enumerate(AMOUNTS)},
        memory={name: (index + 1 + ramp) * 2.0**30 for index, name in enumerate(AMOUNTS)},
    )
    return usual._replace(**more)


def test_columns_are_in_the_order_of_names_and_whole() -> None:
    fleet = fleet_document(columns(3, alerts=[(ALERT,), (), ()]))
    assert [name[:10] for name in fleet.name] == ["node-00001", "node-00002", "node-00003"]
    assert (fleet.pools, fleet.pool) == (["a", "b"], [0, 1, 0])
    assert fleet.stale == [False, True, False]
    assert fleet.as_of_seconds == [1_700_000_002, 1_700_000_001, 1_700_000_000]
    assert fleet.cpu_usage_millicores == [1002, 1001, 1000]
    assert fleet.cpu_batch_millicores == [5004, 5003, 5002]
    assert fleet.memory_peak_mebibytes == [4096, 3072, 2048]
    assert [(alert.node, alert.rule, alert.severity) for alert in fleet.alerts] == [
        (2, "node_cpu", "critical")
    ]


def test_each_amount_has_its_own_column() -> None:
    fleet = msgspec.structs.asdict(fleet_document(columns(1)))
    for index, name in enumerate(AMOUNTS):
        assert fleet[f"cpu_{name}_millicores"] == [round(1000.4 * (index + 1))]
        assert fleet[f"memory_{name}_mebibytes"] == [(index + 1) * 1024]


def test_unknown_is_null_and_never_zero() -> None:
    unknown, amounts = np.array([math.nan, 0.0]), columns(2).cpu
    fleet = fleet_document(columns(2, as_of_seconds=unknown, cpu={**amounts, "mid": unknown}))
    assert fleet.as_of_seconds == [0, None]
    assert fleet.cpu_mid_millicores == [0, None]
    assert b'"cpu_mid_millicores":[0,null]' in encode_document(fleet).body


def test_absurd_amounts_are_unknown() -> None:
    absurd, amounts = np.array([1e300, -1.0, math.inf, 2.0**63, 2.0**53]), columns(5).cpu
    fleet = fleet_document(columns(5, cpu={**amounts, "mid": absurd}))
    assert fleet.cpu_mid_millicores == [2**53, None, None, None, None]


def test_no_nodes_are_a_document_too() -> None:
    assert fleet_document(columns(0)).name == []


def test_equal_documents_have_equal_bytes_and_tags() -> None:
    first, second = (encode_document(fleet_document(columns(5))) for _ in range(2))
    assert first == second
    assert gzip.decompress(first.compressed) == first.body
    assert msgspec.json.decode(first.body, type=Fleet) == fleet_document(columns(5))
    other = columns(5, is_fresh=np.ones(5, np.bool_))
    assert encode_document(fleet_document(other)).etag != first.etag


def test_ten_thousand_nodes_take_less_than_a_megabyte() -> None:
    """Also those of the largest amounts of today's machines, whose names have 41 letters."""
    rng = np.random.default_rng(1)
    nodes = 10_000
    cpu = {name: rng.integers(10_000, 400_000, nodes).astype(np.float64) for name in AMOUNTS}
    memory = {name: rng.integers(1, 4_000_000, nodes) * MEBIBYTE for name in AMOUNTS}
    as_of = 1_700_000_000.0 + rng.integers(0, 30, nodes)
    encoded = encode_document(fleet_document(
        columns(nodes, cpu=cpu, memory=memory, as_of_seconds=as_of)
    ))  # fmt: skip
    assert len(encoded.compressed) < 1_000_000
