"""Limits of resources other than cpu and memory, from a pod's manifest to the scheduler's answer.

Requests say otherwise in each case: who counts them for limits fails.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions, Rules
from pipeline.processors.kubernetes.object_records import node_record, pod_record
from pipeline.processors.placement.enabled_plugins import read_config
from pipeline.settings import ExtenderSettings
from pipeline.sources.compacted_writer import Entry, node_entry, pod_entry
from pipeline.table import Table
from pipeline.table.apply_records import apply
from tests.extender.conftest import Start
from tests.table.records import NOW

DISK = "ephemeral-storage"
PAGES = "hugepages-2Mi"


def node(name: str, **has: Any) -> Entry:
    return node_entry(node_record({"metadata": {"name": name}, "status": {"allocatable": has}}))


def stated(name: str, request: Any = None, limit: Any = None) -> dict[str, Any]:
    """The resources of a container; None is unstated."""
    kinds = {"requests": request, "limits": limit}
    return {kind: {name: amount} for kind, amount in kinds.items() if amount is not None}


def pod(uid: str, *resources: dict[str, Any], on: str = "", **spec: Any) -> dict[str, Any]:
    containers = [
        {"name": f"c{number}", "resources": amounts} for number, amounts in enumerate(resources)
    ]
    metadata = {"name": uid, "namespace": "d", "uid": uid}
    spec = {"nodeName": on, "containers": containers, **spec}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running" if on else "Pending"}}


def put(table: Table, *entries: Entry) -> None:
    for entry in entries:
        apply(table, entry.topic, entry.key, entry.value)


def runs(table: Table, *pods: dict[str, Any]) -> None:
    put(table, *(pod_entry(pod_record(item)) for item in pods))


def rules(name: str, **args: Any) -> Rules:
    by = {"name": "ResourceLimits", "args": {"resources": [{"name": name}], **args}}
    enabled = {"score": {"enabled": [{"name": "ResourceLimits"}]}}
    return Rules(read_config({"plugins": enabled, "pluginConfig": [by]}), score_steps=100)


def scores(table: Table, amounts: Rules, asked: dict[str, Any]) -> dict[str, int]:
    names = list(table)
    result = Decisions(table, amounts).prioritize(pod_record(asked), names, NOW)
    return dict(zip(names, result.plugins["ResourceLimits"].tolist(), strict=True))


async def test_scores_follow_the_limits_of_the_disk(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "scheduler.yaml"
    config.write_text(
        "plugins: {score: {enabled: [{name: ResourceLimits}]}}\n"
        f"pluginConfig: [{{name: ResourceLimits, args: {{resources: [{{name: {DISK}}}]}}}}]\n"
    )
    settings = ExtenderSettings(mode="act", scheduler_config_file=str(config), fine_scores=True)
    table = Table(counting=rules_of(settings).counting)
    for name, has in (("bold", "100Gi"), ("even", "100Gi"), ("free", "100Gi"), ("large", "200Gi")):
        put(table, node(name, cpu=4, **{DISK: has}))
    runs(
        table,
        pod("p1", stated(DISK, "10Gi", "60Gi"), stated(DISK, "1Gi", "20Gi"), on="bold"),
        pod("p2", stated(DISK, None, "35Gi"), on="even", overhead={DISK: "5Gi"}),
        # No limit, so overhead does not count.
        pod("p3", stated(DISK, "90Gi", None), on="free", overhead={DISK: "5Gi"}),
        pod(
            "p4", stated(DISK, "1Gi", "70Gi"), on="large",
            initContainers=[
                {"name": "mesh", "restartPolicy": "Always", "resources": stated(DISK, 1, "10Gi")},
                {"name": "first", "resources": stated(DISK, 1, "90Gi")},
            ],
        ),
    )  # fmt: skip
    client = await start(table=table, settings=settings)

    async def scores_of(asked: dict[str, Any]) -> dict[str, int]:
        question = {"Pod": asked, "NodeNames": ["bold", "even", "free", "large"]}
        reply = await client.post("/prioritize", json=question)
        assert reply.status == 200
        return {item["Host"]: item["Score"] for item in await reply.json()}

    # 80, 40, 0 and 100 of 200 GiB are limits; 20 more leave 0, 40, 80 and 40 percent.
    twenty = pod("new", stated(DISK, "1Gi", "20Gi"))
    assert await scores_of(twenty) == {"bold": 0, "even": 50, "free": 100, "large": 50}
    # Without a limit it may take all that a node has: -80, -40, 0 and -50 percent are left.
    unlimited = pod("new", stated(DISK, "1Gi", None))
    assert await scores_of(unlimited) == {"bold": 0, "even": 50, "free": 100, "large": 37}


def test_the_default_limit_counts_for_pods_with_requests_too() -> None:
    by = rules(DISK, defaultLimit={DISK: "20Gi"})
    table = Table(counting=by.counting)
    for name, has in (("a", "100Gi"), ("b", "100Gi"), ("c", "50Gi")):
        put(table, node(name, **{DISK: has}))
    runs(table, pod("p1", stated(DISK, 1, "80Gi"), on="a"), pod("p2", stated(DISK, 1), on="b"))
    # 0, 80 and 60 percent are left.
    for amounts in (stated(DISK, 1, "20Gi"), stated(DISK, 1), {}):
        assert scores(table, by, pod("new", amounts)) == {"a": 0, "b": 100, "c": 75}


def test_huge_pages_of_pod_level_resources_count() -> None:
    by = rules(PAGES)
    table = Table(counting=by.counting)
    put(table, *(node(name, **{PAGES: "1Gi"}) for name in ("whole", "parts", "none")))
    whole = {"resources": stated(PAGES, "512Mi", "512Mi")}
    runs(
        table,
        pod("p1", stated(PAGES, "64Mi", "64Mi"), on="whole", **whole),
        pod("p2", stated(PAGES, "64Mi", "64Mi"), stated(PAGES, None, "64Mi"), on="parts"),
    )
    # 50, 12.5 and 0 percent are taken; a pod that asks for none takes none.
    assert scores(table, by, pod("new")) == {"whole": 0, "parts": 75, "none": 100}


def test_a_record_without_limits_counts_its_requests() -> None:
    by = rules(DISK)
    table = Table(counting=by.counting)
    put(table, *(node(name, **{DISK: 100}) for name in ("old", "now", "none")))
    before = pod_entry(pod_record(pod("p1", stated(DISK, 40, 40), on="old")))
    assert "scalar_limits" not in json.loads(before.value or b"")
    put(table, before)
    runs(table, pod("p2", stated(DISK, 10, 80), on="now"))
    assert scores(table, by, pod("new", stated(DISK, 1, 1))) == {"old": 50, "now": 0, "none": 100}


class Change(NamedTuple):
    """A pod comes to a node, or departs (no node)."""

    uid: str
    on: str | None
    parts: list[tuple[int | None, int | None]]
    overhead: int


NAMES = ("a", "b", "c")
_amounts = st.none() | st.integers(0, 50)
_changes = st.builds(
    Change, st.sampled_from(["p1", "p2", "p3"]), st.none() | st.sampled_from(NAMES),
    st.lists(st.tuples(_amounts, _amounts), max_size=3), st.integers(0, 5),
)  # fmt: skip


@given(st.lists(_changes, max_size=12), st.none() | st.integers(1, 50))
def test_scores_equal_those_of_a_recount(changes: list[Change], limit: int | None) -> None:
    """However pods came, went and moved."""
    by, have = rules(DISK), {"a": 100, "b": 70, "c": 40}
    table = Table(counting=by.counting)
    for name in NAMES:
        put(table, node(name, **{DISK: have[name]}))
    there: dict[str, Change] = {}
    for item in changes:
        if before := there.pop(item.uid, None):
            table.drop_pod(before.on or "", item.uid)
        if item.on is not None:
            there[item.uid] = item
            parts = [stated(DISK, *amounts) for amounts in item.parts]
            runs(table, pod(item.uid, *parts, on=item.on, overhead={DISK: item.overhead}))
    left = {}
    for name in NAMES:
        taken = have[name] if limit is None else limit
        for item in there.values():
            limits = sum(amounts or 0 for _, amounts in item.parts)
            taken += limits + item.overhead if limits and item.on == name else 0
        left[name] = (have[name] - taken) * 100 / have[name]
    low, high = min(left.values()), max(left.values())
    result = scores(table, by, pod("new", stated(DISK, 1, limit)))
    for name in NAMES:
        exact = (left[name] - low) * 100 / (high - low) if high > low else 0.0
        assert int(exact - 1e-9) <= result[name] <= int(exact + 1e-9)
