"""`springtide recommend`: selected workloads, and output of known and unknown amounts."""

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from msgspec.structs import replace

from pipeline.cli import recommend
from pipeline.cli.main import cli
from pipeline.processors.recommendation_objects import vpa_object
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.recommendations import (
    ContainerRecommendation,
    OomKills,
    PodRecommendation,
    RecommendationRecord,
)


def record(kind: str, name: str, **amounts: dict[str, str]) -> RecommendationRecord:
    given = {key: {"cpu": "500m"} for key in ("target", "lower_bound", "upper_bound")} | amounts
    container = ContainerRecommendation(
        target=given["target"], uncapped_target=given["target"],
        lower_bound=given["lower_bound"], upper_bound=given["upper_bound"],
    )  # fmt: skip
    return RecommendationRecord(
        namespace="shop", kind=kind, name=name, as_of="2023-11-14T22:13:30Z", pods=0, pods_seen=12,
        samples=30, history_days=1.25, replicas=2, requested={"cpu": "800m", "memory": "734003200"},
        recommendation=PodRecommendation(container_recommendations=(container,)),
    )  # fmt: skip


WEB = record(
    "Deployment", "web", target={"cpu": "500m", "memory": "262144001"},
    lower_bound={"cpu": "31m", "memory": "262144000"}, upper_bound={},
)  # fmt: skip
CONTAINERS = {"a\x1b": {"cpu": "13m"}, "main": {"cpu": "400m", "memory": "209715200"}}
WEB_CONTAINERS = replace(
    WEB,
    containers=tuple(
        ContainerRecommendation(
            container_name=name, target=target, lower_bound={}, upper_bound={},
            uncapped_target=target,
        )
        for name, target in CONTAINERS.items()
    ),
)  # fmt: skip
HOSTILE = record("Job", "once\x1b[2J")


def typed(monkeypatch: pytest.MonkeyPatch, *arguments: str, values: Any = None) -> Result:
    """Run the command over a topic with two workloads, or with these values."""
    values = [encode_json(each) for each in (HOSTILE, WEB)] if values is None else values

    async def require(*_: Any) -> None:
        pass

    async def read(*_: Any) -> dict[tuple[int, bytes], bytes]:
        return {(0, f"key {number}".encode()): value for number, value in enumerate(values)}

    monkeypatch.setattr(recommend, "require_topics", require)
    monkeypatch.setattr(recommend, "read_recommendations", read)
    return CliRunner().invoke(cli, ["recommend", *arguments])


def test_table_has_two_lines_per_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    result = typed(monkeypatch)
    assert result.exit_code == 0, result.output
    headers, *lines = [line.split() for line in result.stdout.splitlines()]
    rows = [dict(zip(headers, line, strict=True)) for line in lines]
    web = "Deployment/shop/web"
    assert [line["WORKLOAD"] for line in rows] == [web, web, *[r"Job/shop/once\x1b[2J"] * 2]
    cpu, memory, _, unknown = rows
    assert [cpu[name] for name in ("LOWER", "TARGET", "UPPER")] == ["31m", "500m", "-"]
    assert [memory[name] for name in ("LOWER", "TARGET", "UPPER")] == ["250Mi", "251Mi", "-"]
    assert [cpu[name] for name in ("DAYS", "PODS", "SEEN", "SAMPLES", "AS-OF")] == [
        "1.2", "0", "12", "30", "2023-11-14T22:13:30Z",
    ]  # fmt: skip
    assert {unknown[name] for name in ("LOWER", "TARGET", "UPPER", "SAVES")} == {"-"}
    assert [cpu[name] for name in ("REQUESTED", "SAVES")] == ["800m", "-200m"]
    # 700Mi - 2 * (250Mi + 1 byte), rounded down: a table promises no more than is saved.
    assert [memory[name] for name in ("REQUESTED", "SAVES")] == ["700Mi", "199Mi"]


def test_the_last_oom_kill_is_shown_beside_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    kills = OomKills(last_at="2023-11-14T21:00:05Z", peak=str(640 * 2**20), kills=3)
    killed = replace(WEB, oom_kills=kills)
    result = typed(monkeypatch, values=[encode_json(killed)])
    headers, cpu, memory = (line.split() for line in result.stdout.splitlines())
    assert headers[-2:] == ["OOM-KILLED", "OOM-PEAK"]
    assert (cpu[-2:], memory[-2:]) == (["-", "-"], ["2023-11-14T21:00:05Z", "640Mi"])
    assert recommend.item_document(killed)["oom_kills"] == {
        "last_at": "2023-11-14T21:00:05Z", "peak": "671088640", "kills": 3,
    }  # fmt: skip
    (condition,) = vpa_object(killed)["status"]["conditions"]
    assert "OOM killed at 2023-11-14T21:00:05Z, which counts as a peak" in condition["message"]
    # A record of an older release has none.
    assert decode_json(RecommendationRecord, encode_json(WEB)).oom_kills is None


def test_containers_are_shown_below_their_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [encode_json(WEB_CONTAINERS), encode_json(HOSTILE)]
    plain, result = (typed(monkeypatch, *flags, values=values) for flags in ((), ("--containers",)))
    assert plain.stdout.split()[:2] == ["WORKLOAD", "RESOURCE"]
    headers, *lines = [line.split() for line in result.stdout.splitlines()]
    rows = [dict(zip(headers, line, strict=True)) for line in lines]
    assert [row["CONTAINER"] for row in rows] == [
        "-",
        "-",
        r"a\x1b",
        r"a\x1b",
        "main",
        "main",
        "-",
        "-",
    ]
    assert [row["TARGET"] for row in rows[:6]] == ["500m", "251Mi", "13m", "-", "400m", "200Mi"]
    assert {row["SAVES"] for row in rows[2:6]} == {"-"}


def test_vpa_has_an_entry_for_each_container() -> None:
    # As VPA writes it: `containerName` first, by name, `uncappedTarget` beside `target`.
    status = vpa_object(WEB_CONTAINERS)["status"]
    assert status["recommendation"]["containerRecommendations"] == [
        {
            "containerName": name, "target": target, "lowerBound": {}, "upperBound": {},
            "uncappedTarget": target,
        }
        for name, target in CONTAINERS.items()
    ]  # fmt: skip
    assert status["conditions"][0]["message"].startswith("per container; as of")
    document = recommend.item_document(WEB_CONTAINERS)
    assert [each["containerName"] for each in document["containers"]] == [*CONTAINERS]
    assert document["koordinator"]["status"]["containerStatuses"] == [
        {"containerName": name, "resources": target} for name, target in CONTAINERS.items()
    ]
    # What the pod as a whole needs stays beside it.
    assert document["recommendation"] == recommend.item_document(WEB)["recommendation"]


def test_an_amount_of_any_length_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = "9" * 5000
    result = typed(monkeypatch, values=[encode_json(record("Job", "j", target={"memory": memory}))])
    assert (result.exit_code, memory in result.stdout) == (0, True), result.exception


def test_json_has_the_fields_of_vpa_and_koordinator() -> None:
    document = recommend.item_document(WEB)
    target = {"cpu": "500m", "memory": "262144001"}
    assert document["recommendation"] == {
        "containerRecommendations": [
            {
                "target": target, "uncappedTarget": target, "upperBound": {},
                "lowerBound": {"cpu": "31m", "memory": "262144000"},
            }
        ]
    }  # fmt: skip
    assert (document["as_of"], document["pods"]) == ("2023-11-14T22:13:30Z", 0)
    assert document["saves"] == {"cpu": "-200m", "memory": str(734003200 - 2 * 262144001)}
    assert document["koordinator"] == {
        "apiVersion": "analysis.koordinator.sh/v1alpha1",
        "kind": "Recommendation",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "target": {"type": "workload", "workload": {"kind": "Deployment", "name": "web"}},
        },
        "status": {"containerStatuses": [{"resources": target}]},
    }


def test_vpa_prints_an_object_for_each_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    result = typed(monkeypatch, "-o", "vpa")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout
    assert [*yaml.safe_load_all(result.stdout)] == [vpa_object(WEB), vpa_object(HOSTILE)]
    result = typed(monkeypatch, "-o", "vpa", values=[])
    assert (result.exit_code, result.stdout) == (4, "")


@pytest.mark.parametrize(
    "name",
    [
        "shop/web",
        "Deployment/shop/web",
        "deployment/web",
        "deploy/web",
        "web",
        "we",
        "deploy/shop/w",
    ],
)
def test_workload_is_selected_by_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    result = typed(monkeypatch, name, "-o", "json")
    assert result.exit_code == 0, result.output
    (web,) = json.loads(result.stdout)["items"]
    assert web["name"] == "web"


@pytest.mark.parametrize("name", ["a/b/c/d", "shop/", "/web", ""])
def test_invalid_name_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    result = typed(monkeypatch, name)
    assert (result.exit_code, "kind/namespace/name" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ReplicaSet/shop/web-5d4", "did you mean Deployment/shop/web?"),
        ("Job/shop/web", "did you mean Deployment/shop/web?"),
        ("shop/nobody", "a pod without a controller has none"),
        ("elsewhere/web", "a pod without a controller has none"),
    ],
)
def test_workload_without_a_recommendation_exits_with_4(
    monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    result = typed(monkeypatch, name)
    assert (result.exit_code, message in result.stderr) == (4, True), result.output
    assert result.stdout == ""


def test_invalid_record_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    result = typed(monkeypatch, values=[b"no json", encode_json(WEB)])
    assert result.exit_code == 0
    assert "skipped the record key 0" in result.stderr
    assert "Deployment/shop/web" in result.stdout


def test_without_any_recommendation_exits_with_4(monkeypatch: pytest.MonkeyPatch) -> None:
    result = typed(monkeypatch, "-o", "json", values=[])
    assert (result.exit_code, json.loads(result.stdout)) == (4, {"items": []})
