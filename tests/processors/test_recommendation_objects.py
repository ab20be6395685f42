"""Recommendations as objects; a real API server accepts them with the autoscaler's own schema."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from pipeline.errors import ControlPlaneError
from pipeline.local.control_plane import ControlPlane
from pipeline.processors.recommendation_objects import koordinator_object, vpa_object
from tests.cluster.objects import define
from tests.processes import ROOT
from tests.topics.golden import RECOMMENDATION

DEFINITION = str(ROOT / "tests/data/operators/vertical_pod_autoscaler.json")
NAME = "springtide-deployment-web"


def test_an_autoscaler_recommends_and_changes_nothing() -> None:
    vpa = vpa_object(RECOMMENDATION)
    assert (vpa["apiVersion"], vpa["kind"]) == ("autoscaling.k8s.io/v1", "VerticalPodAutoscaler")
    assert vpa["metadata"] == {"namespace": "shop", "name": NAME}
    # With a recommender of its own, the autoscaler's does not overwrite the status.
    assert vpa["spec"] == {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "updatePolicy": {"updateMode": "Off"},
        "recommenders": [{"name": "springtide"}],
    }
    (container,) = vpa["status"]["recommendation"]["containerRecommendations"]
    assert container["containerName"] == "main"
    (condition,) = vpa["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("RecommendationProvided", "True")
    assert condition["message"].startswith("per container; as of")


def test_without_a_known_container_the_pod_as_a_whole_has_an_entry() -> None:
    vpa = vpa_object(replace(RECOMMENDATION, containers=()))
    (container,) = vpa["status"]["recommendation"]["containerRecommendations"]
    target = {"cpu": "500m", "memory": "262144000"}
    assert container == {
        "target": target, "uncappedTarget": target, "upperBound": {"cpu": "1500m"},
        "lowerBound": {"cpu": "250m", "memory": "262144000"},
    }  # fmt: skip
    (condition,) = vpa["status"]["conditions"]
    assert condition["message"].startswith("for the pod as a whole, because no container is known")


@pytest.mark.parametrize(
    ("kind", "api_version"),
    [("StatefulSet", "apps/v1"), ("CronJob", "batch/v1"), ("Rollout", "argoproj.io/v1alpha1")],
)
def test_well_known_kinds_have_their_api_version(kind: str, api_version: str) -> None:
    target = vpa_object(replace(RECOMMENDATION, kind=kind))["spec"]["targetRef"]
    assert target == {"apiVersion": api_version, "kind": kind, "name": "web"}


def test_other_kinds_have_no_api_version() -> None:
    target = vpa_object(replace(RECOMMENDATION, kind="Shop"))["spec"]["targetRef"]
    assert target == {"kind": "Shop", "name": "web"}


def test_names_that_would_be_too_long_end_with_a_hash() -> None:
    fits, *too_long = [
        vpa_object(replace(RECOMMENDATION, name=name))["metadata"]["name"]
        for name in ("w" * 231, "w" * 220 + ".web-and-more-1", "w" * 220 + ".web-and-more-2")
    ]
    assert fits == f"springtide-deployment-{'w' * 231}"
    assert [len(name) <= 253 for name in too_long] == [True, True]
    assert len({*too_long}) == 2
    # The cut is behind the dot, which may not stand before the hyphen of the hash.
    assert all(re.fullmatch(r"springtide-deployment-w{220}-[0-9a-f]{10}", n) for n in too_long)


def test_koordinator_gets_the_target_alone() -> None:
    target = {"cpu": "500m", "memory": "262144000"}
    assert koordinator_object(RECOMMENDATION)["status"] == {
        "containerStatuses": [{"containerName": "main", "resources": target}]
    }
    assert koordinator_object(replace(RECOMMENDATION, containers=()))["status"] == {
        "containerStatuses": [{"resources": target}]
    }


@pytest.fixture
def autoscaled(plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane that serves the autoscaler's kind, and the namespace of the workload."""
    define(plane, DEFINITION)
    plane.kubectl("create", "namespace", "shop")
    yield plane
    plane.kubectl("delete", "namespace", "shop", "--wait=false")
    plane.kubectl("delete", "-f", DEFINITION)


@pytest.mark.plane
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_api_server_accepts_and_shows_the_object(autoscaled: ControlPlane) -> None:
    older = replace(RECOMMENDATION, as_of="2023-11-13T22:13:30Z", history_days=0.2)
    vpa: dict[str, Any] = {}
    # The second time replaces the status of the first.
    for record in (older, RECOMMENDATION):
        vpa = vpa_object(record)
        text = json.dumps(vpa)
        for part in ((), ("--server-side", "--subresource=status")):
            autoscaled.kubectl("apply", "--validate=strict", *part, "-f", "-", stdin=text)
        stored = json.loads(autoscaled.kubectl("get", "vpa", NAME, "-n", "shop", "-o", "json"))
        # The API server drops what its schema does not have.
        assert (stored["spec"], stored["status"]) == (vpa["spec"], vpa["status"])
    columns = autoscaled.kubectl("get", "vpa", "-n", "shop", "--no-headers").split()
    assert columns[:5] == [NAME, "Off", "500m", "262144000", "True"]
    vpa["spec"]["updatePolicy"]["updateMode"] = "Recommend"
    with pytest.raises(ControlPlaneError, match="updateMode"):
        autoscaled.kubectl("apply", "--validate=strict", "-f", "-", stdin=json.dumps(vpa))
