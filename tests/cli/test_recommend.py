"""`springtide recommend`: who may be asked for, and what is printed of known and unknown."""

import json
import math
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pipeline.cli import recommend
from pipeline.cli.main import cli
from pipeline.errors import CheckpointError
from pipeline.processors.model.bank import Bank
from pipeline.processors.recommendation import Advice, Owner, Recommendation, Workloads
from tests.processors.windows import GIB, Pod, window

NAN = math.nan
WEB = Owner("ReplicaSet", "shop", "web-5d4")
KNOWN = Recommendation(
    WEB, 3, 1_700_000_010_000,
    Advice(0.0301, 0.5, NAN, 0.0, 1, 1, 0.4, 0.4),
    Advice(NAN, NAN, NAN, 0.0, 0, 0, NAN, NAN),
)  # fmt: skip


def asking(monkeypatch: pytest.MonkeyPatch, *arguments: str, failed: Any = None) -> Result:
    """The command over one node with pods of two owners, of which one has samples."""
    bank = Bank()
    bank.apply([window(i, [Pod("p", (1.0, GIB)), Pod("other", (1.0, GIB))]) for i in range(30)])

    async def read(settings: object, workloads: Workloads, asked: Any) -> Any:
        owners = [WEB, WEB, Owner("Job", "shop", "once\x1b[2J")]
        numbers = {
            uid: workloads.count(owner)
            for uid, owner in zip(["p", "q", "r"], owners, strict=True)
            if asked is None or asked(owner)
        }
        workloads.add("node-a", bank.state_of("node-a"), numbers)
        return failed or {}

    monkeypatch.setattr(recommend, "_read", read)
    return CliRunner().invoke(cli, ["recommend", *arguments])


def test_a_table_has_two_lines_for_each_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    result = asking(monkeypatch)
    assert result.exit_code == 0, result.output
    titles, *lines = [line.split() for line in result.stdout.splitlines()]
    found = [dict(zip(titles, line, strict=True)) for line in lines]
    assert [line["OWNER"] for line in found] == [
        r"Job/shop/once\x1b[2J", r"Job/shop/once\x1b[2J", str(WEB), str(WEB),
    ]  # fmt: skip
    job, _, cpu, memory = found
    assert {job[title] for title in ("LOWER", "TARGET", "UPPER", "DAYS", "POD-MAX")} == {"-"}
    assert (job["PODS"], job["SAMPLES"]) == ("0/1", "none")
    assert (cpu["RESOURCE"], cpu["PODS"], cpu["SAMPLES"]) == ("cpu", "1/2", "30")
    assert 1150 <= int(cpu["TARGET"].removesuffix("m")) <= 1250
    assert 1177 <= int(memory["TARGET"].removesuffix("Mi")) <= 1270
    assert "pods with models left out: 1, gone, or no source names them" in result.stderr


def test_json_is_in_the_words_of_both_and_unknown_is_left_out() -> None:
    assert recommend.document(KNOWN) == {
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
def test_an_owner_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    result = asking(monkeypatch, name, "--json")
    assert result.exit_code == 0, result.output
    (web,) = json.loads(result.stdout)["items"]
    assert web["owner"]["name"] == "web-5d4"
    (found,) = web["recommendation"]["containerRecommendations"]
    assert found["target"] == found["uncappedTarget"]
    assert int(found["lowerBound"]["memory"]) < int(found["target"]["memory"])
    assert int(found["target"]["memory"]) < int(found["upperBound"]["memory"])


@pytest.mark.parametrize("name", ["web", "a/b/c/d", "shop/", "/web", ""])
def test_what_is_no_owner_is_a_mistake(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    result = asking(monkeypatch, name)
    assert (result.exit_code, "write Kind/namespace/name" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Deployment/shop/web", "did you mean ReplicaSet/shop/web-5d4?"),
        ("Job/shop/web-5d4", "did you mean ReplicaSet/shop/web-5d4?"),
        ("shop/nobody", "the ReplicaSet of a Deployment"),
        ("elsewhere/web-5d4", "the ReplicaSet of a Deployment"),
    ],
)
def test_an_owner_without_pods_is_not_there(
    monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    result = asking(monkeypatch, name)
    assert (result.exit_code, says in result.stderr) == (4, True), result.output
    assert result.stdout == ""


def test_where_nothing_is_known_it_is_shown_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"node-b": CheckpointError("its checksum does not match")}
    result = asking(monkeypatch, "shop/once\x1b[2J", "--json", failed=failed)
    assert result.exit_code == 4
    (job,) = json.loads(result.stdout)["items"]
    assert job["as_of"] is None
    assert job["recommendation"] == {"containerRecommendations": []}
    assert job["koordinator"]["status"] == {"containerStatuses": []}
    assert "nodes left out: 1, as node-b: its checksum does not match" in result.stderr
    assert "no model of any has samples" in result.stderr
