"""The exporter reads the policy of its node from the node's record, and applies it."""

import json
from pathlib import Path

import msgspec
import pytest

from node_exporter.exporter_service import WindowMaker
from node_exporter.node_policy import NodePolicy, node_policy
from node_exporter.sampler import Sampler
from node_exporter.ticks import Tick
from pipeline.clock import ManualClock
from pipeline.errors import RecordError
from pipeline.processors.policy.policy_in_force import load_policies, with_policy
from pipeline.settings import HostApplication, HostApplicationCgroup
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import NodeRecord, NodeStrategy
from tests.node_exporter.fake_node import FakeNode

NGINX = {
    "name": "nginx", "priority": "koord-prod", "qos": "LS",
    "cgroupPath": {"base": "CgroupRoot", "parentDir": "web", "relativePath": "nginx"},
}  # fmt: skip


def record(**texts: object) -> bytes:
    """The record of a node with these sections of the ConfigMap."""
    data = {name.replace("_", "-"): json.dumps(value) for name, value in texts.items()}
    policies, _ = load_policies(data)
    return encode_json(with_policy(NodeRecord(node="n1"), policies)[0])


@pytest.mark.parametrize(
    ("strategy", "policy"),
    [
        (None, NodePolicy()),
        (NodeStrategy(predictor="percentile"), NodePolicy()),
        (NodeStrategy(report_interval_seconds=300.0), NodePolicy(report_interval_seconds=300.0)),
        (
            NodeStrategy(memory_collect_policy="usageWithPageCache"),
            NodePolicy(memory_collect_policy="usageWithPageCache"),
        ),
    ],
)
def test_policy_is_read_from_the_record(strategy: NodeStrategy | None, policy: NodePolicy) -> None:
    assert node_policy(encode_json(NodeRecord(node="n1", strategy=strategy))) == policy


def test_host_applications_of_the_configmap_are_read_from_the_record() -> None:
    assert node_policy(record(host_application_config={"applications": [NGINX]})) == NodePolicy(
        host_applications=(
            HostApplication(
                name="nginx", priority="koord-prod", qos="LS",
                cgroup_path=HostApplicationCgroup(parent_dir="web", relative_path="nginx"),
            ),
        )
    )  # fmt: skip


def test_an_invalid_host_application_is_refused_alone() -> None:
    slo = {"hostApplications": [{"priority": "koord-prod"}, {"name": "a\nb"}, NGINX, NGINX]}
    raw = msgspec.Raw(msgspec.json.encode(slo))
    policy = node_policy(encode_json(NodeRecord(node="n1", slo=raw)))
    assert [app.name for app in policy.host_applications] == ["nginx"]
    assert [reason.split(":")[0] for reason in policy.refused] == ["None", r"'a\nb'", "'nginx'"]


def test_the_number_of_host_applications_is_limited() -> None:
    slo = {"hostApplications": [{"name": f"a{i}"} for i in range(1000)]}
    raw = msgspec.Raw(msgspec.json.encode(slo))
    policy = node_policy(encode_json(NodeRecord(node="n1", slo=raw)))
    assert (len(policy.host_applications), len(policy.refused)) == (64, 936)


def test_tombstone_has_no_policy() -> None:
    assert node_policy(None) == NodePolicy()


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"\xff", b'{"version":2,"node":"n1"}',
     b'{"version":1,"node":"n1","strategy":{"report_interval_seconds":"often"}}',
     b'{"version":1,"node":"n1","slo":{"hostApplications":[1]}}'],
)  # fmt: skip
def test_invalid_record_is_refused(value: bytes) -> None:
    with pytest.raises(RecordError):
        node_policy(value)


async def test_host_applications_of_the_policy_are_measured_while_it_names_them(
    tmp_path: Path,
) -> None:
    node, clock = FakeNode(tmp_path), ManualClock(1_700_000_000.0)
    node.cgroup("web/nginx", 0)
    own = HostApplication(name="own", cgroup_path=HostApplicationCgroup(relative_path="own"))
    settings = node.settings(host_applications=(own,))
    maker = WindowMaker(settings, "fake", Sampler(settings, clock), 1)

    async def measured() -> list[str]:
        await clock.advance(1)
        collection, _ = maker.collect(Tick(round(clock.now() * 1000), 0, 0.0))
        return [use.entity.id for use in collection.usages if use.entity.kind == "host_app"]

    assert await measured() == []
    overlapping = {"name": "twice", "cgroupPath": {"relativePath": "web"}}
    applications = {"applications": [NGINX, overlapping]}
    maker.apply_policy(node_policy(record(host_application_config=applications)))
    assert [app.name for app in maker.sampler.host_applications] == ["own", "nginx"]
    assert await measured() == ["nginx"]
    maker.apply_policy(NodePolicy())
    assert await measured() == []


def test_memory_figure_of_the_metrics_follows_the_policy(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    settings = node.settings(memory_collect_policy="usageWithHotPageCache")
    maker = WindowMaker(settings, "fake", Sampler(settings, ManualClock()), 1)
    config = {"enable": True, "metricMemoryCollectPolicy": "usageWithPageCache"}
    figures = []
    for value in (record(colocation_config=config), None):
        maker.apply_policy(node_policy(value))
        figures.append(maker.memory_collect_policy)
    assert figures == ["usageWithPageCache", "usageWithHotPageCache"]
