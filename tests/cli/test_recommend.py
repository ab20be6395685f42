"""`springtide recommend`: selected owners, and output of known and unknown amounts."""

import json
import math
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pipeline.cli import recommend
from pipeline.cli.main import cli
from pipeline.errors import CheckpointError
from pipeline.processors.model.bank import Bank
from pipeline.processors.recommendation import Advice, PodOwner, Recommendation, WorkloadSums
from tests.processors.windows import GIB, Pod, window

NAN = math.nan
WEB = PodOwner("ReplicaSet", "shop", "web-5d4")
KNOWN = Recommendation(
    WEB, 3, 1_700_000_010_000,
    Advice(0.0301, 0.5, NAN, 0.0, 1, 1, 0.4, 0.4),
    Advice(NAN, NAN, NAN, 0.0, 0, 0, NAN, NAN),
)  # fmt: skip


def recommending(monkeypatch: pytest.MonkeyPatch, *arguments: str, failed: Any = None) -> Result:
    """Run the command over one node with pods of two owners; one of them has samples."""
    bank = Bank()
    bank.apply([window(i, [Pod("p", (1.0, GIB)), Pod("other", (1.0, GIB))]) for i in range(30)])

    async def read(settings: object, workloads: WorkloadSums, selected: Any) -> Any:
        owners = [WEB, WEB, PodOwner("Job", "shop", "once\x1b[2J")]
        numbers = {
            uid: workloads.count(owner)
            for uid, owner in zip(["p", "q", "r"], owners, strict=True)
            if selected is None or selected(owner)
        }
        workloads.add("node-a", bank.encode_state("node-a"), numbers)
        return failed or {}

    monkeypatch.setattr(recommend, "read_models", read)
    return CliRunner().invoke(cli, ["recommend", *arguments])


def test_table_has_two_lines_per_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    result = recommending(monkeypatch)
    assert result.exit_code == 0, result.output
    headers, *lines = [line.split() for line in result.stdout.splitlines()]
    rows = [dict(zip(headers, line, strict=True)) for line in lines]
    assert [line["OWNER"] for line in rows] == [
        r"Job/shop/once\x1b[2J", r"Job/shop/once\x1b[2J", str(WEB), str(WEB),
    ]  # fmt: skip
    job, _, cpu, memory = rows
    assert {job[header] for header in ("LOWER", "TARGET", "UPPER", "DAYS", "POD-MAX")} == {"-"}
    assert (job["PODS"], job["SAMPLES"]) == ("0/1", "none")
    assert (cpu["RESOURCE"], cpu["PODS"], cpu["SAMPLES"]) == ("cpu", "1/2", "30")
    assert 1150 <= int(cpu["TARGET"].removesuffix("m")) <= 1250
    assert 1177 <= int(memory["TARGET"].removesuffix("Mi")) <= 1270
    assert "skipped 1 pods with models but without a record" in result.stderr


def test_json_has_the_fields_of_vpa_and_koordinator_without_unknown() -> None:
    assert recommend.owner_document(KNOWN) == {
        "owner": {"kind": "ReplicaSet", "namespace": "shop", "name": "web-5d4"},
        "as_of": "2023-11-14T22:13:30Z",
        "pods": 3,
        "resources": {
            "cpu": {
                "pods_with_samples": 1, "samples": 1, "history_days": 0.0,
                "pod_peaks": {"median": "400m", "max": "400m"},
            },
            "memory": {
                "pods_with_samples": 0, "samples": 0, "history_days": None,
                "pod_peaks": {"median": None, "max": None},
            },
        },
        "recommendation": {
            "containerRecommendations": [
                {
                    "target": {"cpu": "500m"}, "lowerBound": {"cpu": "31m"},
                    "upperBound": {}, "uncappedTarget": {"cpu": "500m"},
                }
            ]
        },
        "koordinator": {
            "apiVersion": "analysis.koordinator.sh/v1alpha1",
            "kind": "Recommendation",
            "metadata": {"namespace": "shop", "name": "web-5d4"},
            "spec": {
                "target": {
                    "type": "workload", "workload": {"kind": "ReplicaSet", "name": "web-5d4"},
                }
            },
            "status": {"containerStatuses": [{"resources": {"cpu": "500m"}}]},
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["shop/web-5d4", "ReplicaSet/shop/web-5d4", "replicaset/shop/web-5d4"]
)
def test_owner_is_selected_by_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    result = recommending(monkeypatch, name, "--json")
    assert result.exit_code == 0, result.output
    (web,) = json.loads(result.stdout)["items"]
    assert web["owner"]["name"] == "web-5d4"
    (container,) = web["recommendation"]["containerRecommendations"]
    assert container["target"] == container["uncappedTarget"]
    lower, target, upper = (
        int(container[name]["memory"]) for name in ("lowerBound", "target", "upperBound")
    )
    assert lower < target < upper


@pytest.mark.parametrize("name", ["web", "a/b/c/d", "shop/", "/web", ""])
def test_invalid_owner_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    result = recommending(monkeypatch, name)
    assert (result.exit_code, "give Kind/namespace/name" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Deployment/shop/web", "did you mean ReplicaSet/shop/web-5d4?"),
        ("Job/shop/web-5d4", "did you mean ReplicaSet/shop/web-5d4?"),
        ("shop/nobody", "the ReplicaSet of a Deployment"),
        ("elsewhere/web-5d4", "the ReplicaSet of a Deployment"),
    ],
)
def test_owner_without_pods_exits_with_4(
    monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    result = recommending(monkeypatch, name)
    assert (result.exit_code, message in result.stderr) == (4, True), result.output
    assert result.stdout == ""


def test_owner_without_samples_is_shown_and_exits_with_4(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"node-b": CheckpointError("its checksum does not match")}
    result = recommending(monkeypatch, "shop/once\x1b[2J", "--json", failed=failed)
    assert result.exit_code == 4
    (job,) = json.loads(result.stdout)["items"]
    assert (job["as_of"], job["recommendation"]) == (None, {"containerRecommendations": []})
    assert job["koordinator"]["status"] == {"containerStatuses": []}
    assert "skipped 1 nodes, such as node-b: its checksum does not match" in result.stderr
    assert "no model of these pods has samples" in result.stderr
