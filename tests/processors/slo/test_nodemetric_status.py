"""The status of a NodeMetric equals that of koordlet."""

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.join.pod_facts import deleted_row
from pipeline.processors.join.pod_facts import pod_row as row_of_pod
from pipeline.processors.join.sample_join import NodeObjects
from pipeline.processors.kubernetes.durations import duration_text
from pipeline.processors.slo.nodemetric import HostApplicationMetric, PodMetric
from pipeline.processors.slo.nodemetric_status import (
    NodeMetricReport,
    pods_of,
    resource_map,
    status_of,
)
from pipeline.processors.slo.quantities import cpu_quantity, memory_quantity
from pipeline.topics.node_state import AggregatedUsage
from pipeline.topics.resource_amounts import Usage, parse_quantity
from tests.processors.joined import NODE_ROW, joined, known_pod, logged, pod_row, view_of
from tests.processors.slo.recorded import Json, load, read_strictly

KI = 1024


def usage(cpu: float | None, memory: float | None) -> Usage:
    return Usage(cpu_cores=cpu, memory_bytes=memory)


def percentiles(*pairs: tuple[float, int]) -> AggregatedUsage:
    p50, p90, p95, p99 = (usage(cpu, ki * KI) for cpu, ki in pairs)
    return AggregatedUsage(p50=p50, p90=p90, p95=p95, p99=p99)


def pod(namespace: str, name: str, used: Usage, **values: Any) -> PodMetric:
    return PodMetric(namespace=namespace, name=name, pod_usage=resource_map(used), **values)


def app(name: str, used: Usage, **values: Any) -> HostApplicationMetric:
    return HostApplicationMetric(name=name, usage=resource_map(used), **values)


def report(**values: Any) -> NodeMetricReport:
    usual: dict[str, Any] = {
        "updated_seconds": 1_700_000_000.9,
        "usage": Usage(),
        "system_usage": Usage(),
    }
    return NodeMetricReport(**(usual | values))


def status(**values: Any) -> Json:
    """The status as JSON, every field of which is known to the definition."""
    result: Json = json.loads(msgspec.json.encode(status_of(report(**values))))
    own = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {}}
    read_strictly({**own, "status": result})
    return result


def test_the_status_equals_a_report_recorded_from_koordlet() -> None:
    """Given the numbers that koordlet had, we write what it wrote."""
    expected = load("nodemetric-master-01.yaml")["status"]
    result = status(
        updated_seconds=1_748_144_198.0,
        usage=usage(0.515, 5_862_330_450.0),
        system_usage=usage(0.196, 3_150_994_008.0),
        aggregated={
            "30m": percentiles(
                (0.429, 5723620), (0.858, 5823232), (1.113, 5867972), (1.467, 5977372)
            ),
            "5m": percentiles(
                (0.429, 5712464), (0.886, 5750116), (1.097, 5833412), (1.366, 5938812)
            ),
        },
        aggregated_system={
            "5m": percentiles(
                (0.153, 3078852), (0.407, 3085764), (0.539, 3088652), (0.795, 3106312)
            ),
            "30m": percentiles(
                (0.156, 3082092), (0.424, 3179492), (0.569, 3184832), (0.853, 3203756)
            ),
        },
        pods=(
            pod(
                "mysql", "mysql-7474b86d4f-52p5n", usage(0.0215, 393_941_019.9),
                priority="koord-prod", qos="LSR",
            ),
            pod(
                "clickhouse", "my-clickhouse-zookeeper-0", usage(0.026, 396_051_912.0),
                priority="koord-prod", qos="LS",
            ),
        ),
        prod_reclaimable=usage(2.38, 0.0),
    )  # fmt: skip
    # That Koordinator knew no host applications yet.
    assert result.pop("hostApplicationMetric") == []
    assert result == expected


def test_unknown_amounts_are_missing_in_the_status() -> None:
    assert status() == {
        "updateTime": "2023-11-14T22:13:20Z",
        "nodeMetric": {"nodeUsage": {}, "systemUsage": {}},
        "podsMetric": [],
        "hostApplicationMetric": [],
    }


def test_partly_known_amounts_are_written_in_part() -> None:
    result = status(usage=usage(1.0, None), prod_peak=usage(None, 5.0))
    assert result["nodeMetric"]["nodeUsage"] == {"resources": {"cpu": "1"}}
    assert result["prodPeakMetric"] == {"resource": {"resources": {"memory": "5"}}}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_invalid_amounts_are_unknown(bad: float) -> None:
    result = status(usage=usage(bad, bad), prod_reclaimable=usage(bad, bad))
    assert result["nodeMetric"]["nodeUsage"] == {}
    assert "prodReclaimableMetric" not in result


@pytest.mark.parametrize("known", [usage(None, 1.0), usage(1.0, None), usage(1.0, math.nan)])
def test_a_pod_of_which_a_part_is_unknown_is_left_out(known: Usage) -> None:
    """Else what is missing would count as 0, and be handed on."""
    result = status(pods=(pod("a", "b", known),), host_apps=(app("nginx", known),))
    assert (result["podsMetric"], result["hostApplicationMetric"]) == ([], [])


def test_a_span_without_known_values_has_no_usage() -> None:
    known = AggregatedUsage(avg=usage(1.0, 1024.0))
    result = status(aggregated={"30m": known, "10m": AggregatedUsage(), "5m": known})
    assert result["nodeMetric"]["aggregatedNodeUsages"] == [
        {"duration": "5m0s", "usage": {"avg": {"resources": {"cpu": "1", "memory": "1Ki"}}}},
        {"duration": "10m0s"},
        {"duration": "30m0s", "usage": {"avg": {"resources": {"cpu": "1", "memory": "1Ki"}}}},
    ]
    with pytest.raises(ValueError, match="not a duration"):
        status_of(report(aggregated={"soon": known}))


def test_pods_and_applications_are_sorted_by_name_and_omit_unset_classes() -> None:
    used, one = usage(0.0015, 0.0), usage(1.0, 1.0)
    result = status(
        pods=(
            pod("b", "a", used), pod("a", "z", used, priority="koord-batch", qos="BE"),
            pod("a", "b", used),
        ),
        host_apps=(app("z", one, priority="koord-batch", qos="BE"), app("a", one)),
    )  # fmt: skip
    resources = {"resources": {"cpu": "1m", "memory": "0"}}
    assert result["podsMetric"] == [
        {"name": "b", "namespace": "a", "podUsage": resources},
        {
            "name": "z", "namespace": "a", "podUsage": resources,
            "priority": "koord-batch", "qos": "BE",
        },
        {"name": "a", "namespace": "b", "podUsage": resources},
    ]  # fmt: skip
    apps = [(each["name"], each.get("priority")) for each in result["hostApplicationMetric"]]
    assert apps == [("a", None), ("z", "koord-batch")]


def test_pods_get_names_and_classes_from_the_window() -> None:
    known = [
        known_pod("u2", name="web", pod_class="prod", qos="LS"),
        known_pod("u1", name="job", namespace="batch", pod_class="batch", qos="BE"),
    ]
    window = logged(
        joined(NODE_ROW, pod_row("u2"), pod_row("u3"), pod_row("u1"), view=view_of(*known))
    )
    result = pods_of(window, np.array([[1.0, 10.0], [2.0, np.nan], [3.0, 30.0]]))
    assert result == (
        pod("batch", "job", usage(1.0, 10.0), priority="koord-batch", qos="BE"),
        pod("shop", "web", usage(2.0, None), priority="koord-prod", qos="LS"),
    )


def test_a_deleted_pod_is_not_reported_beside_a_new_pod_of_its_name() -> None:
    old, new = (row_of_pod(known_pod(uid, name="db-0", pod_class="prod")) for uid in ("u1", "u2"))
    view = NodeObjects(None, {"u1": deleted_row(old), "u2": new})
    window = logged(joined(NODE_ROW, pod_row("u1"), pod_row("u2"), view=view))
    (result,) = pods_of(window, np.array([[1.0, 10.0], [2.0, 20.0]]))
    assert (result.name, result.pod_usage) == ("db-0", resource_map(usage(2.0, 20.0)))


def test_unknown_and_unnamed_pods_are_not_reported() -> None:
    window = logged(joined(NODE_ROW, pod_row("u2")))
    assert pods_of(window, np.ones((1, 2))) == ()
    unnamed = view_of(known_pod("u2", name=""))
    assert pods_of(logged(joined(NODE_ROW, pod_row("u2"), view=unnamed)), np.ones((1, 2))) == ()
    with pytest.raises(ValueError):
        pods_of(window, np.ones((2, 2)))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (45, "45s"), (60, "1m0s"), (3600, "1h0m0s"), (5400, "1h30m0s"), (90061, "25h1m1s")],
)
def test_durations_are_written_as_go_does(seconds: int, text: str) -> None:
    assert duration_text(Decimal(seconds)) == text


AMOUNTS = st.integers(0, 2**62) | st.integers(0, 60).map(lambda n: 1 << n)


@given(AMOUNTS)
def test_quantities_are_exact_and_the_shortest(amount: int) -> None:
    for text, factor, base in (
        (cpu_quantity(amount), 1000, 1000),
        (memory_quantity(amount), 1, 1024 if amount >= 1024 else 1000),
    ):
        if amount / factor <= 2**62:
            assert parse_quantity(text) * factor == Decimal(amount)
        digits, suffix = re.fullmatch(r"(\d+)([a-zA-Z]*)", text).groups()  # type: ignore[union-attr]
        if suffix not in ("E", "Ei") and amount:
            assert int(digits) % base, "a larger suffix would do"


@pytest.mark.parametrize(
    ("write", "amount", "text"),
    [
        *(
            (cpu_quantity, millicores, text)
            for millicores, text in (
                (0, "0"), (1, "1m"), (515, "515m"), (1000, "1"), (1500, "1500m"), (3_000_000, "3k"),
            )
        ),
        *(
            (memory_quantity, size, text)
            for size, text in (
                (0, "0"), (1, "1"), (1000, "1k"), (1023, "1023"), (1024, "1Ki"), (1025, "1025"),
                (2000, "2000"), (5_862_330_450, "5862330450"), (5712464 * KI, "5712464Ki"),
                (KI**3, "1Gi"),
            )
        ),
    ],
)  # fmt: skip
def test_amounts_as_quantities(write: Callable[[int], str], amount: int, text: str) -> None:
    assert write(amount) == text
