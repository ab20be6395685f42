"""The pod in a manifest, or the pod of its template."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.extender.query_api import read_subject
from pipeline.sources.pod_manifests import Candidate, add_candidate, pod_in_file
from tests.test_input_files import alias_bomb

FILE = Path("some.yaml")
SPEC = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "250m"}}}]}
TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": SPEC}
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": SPEC}


def workload(kind: str, spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "web", "namespace": "shop"}, "spec": spec}


def pod(*trees: Any) -> Any:
    return json.loads(pod_in_file(FILE, yaml.safe_dump_all(trees)))["pod"]


def test_pod_is_unchanged() -> None:
    for trees in ([POD], [{"kind": "Service"}, POD, None], [{"kind": "List", "items": [POD]}]):
        assert pod(*trees) == POD


@pytest.mark.parametrize(
    "tree",
    [
        *(
            workload(kind, {"replicas": 3, "template": TEMPLATE})
            for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job")
        ),
        workload("CronJob", {"jobTemplate": {"spec": {"template": TEMPLATE}}}),
        {**workload("PodTemplate", None), "template": TEMPLATE},
    ],
    ids=lambda tree: tree["kind"],
)
def test_workload_has_the_pod_of_its_template(tree: dict[str, Any]) -> None:
    created = pod(tree)
    assert created["spec"] == SPEC
    assert created["metadata"] == {
        "name": "web", "namespace": "shop", "labels": {"app": "web"},
        "ownerReferences": [{"kind": tree["kind"], "name": "web", "controller": True}],
    }  # fmt: skip
    subject = read_subject(json.dumps({"pod": created}).encode())
    assert subject.record.requests.cpu_millicores == 250
    assert subject.is_exempt == (tree["kind"] == "DaemonSet")


@pytest.mark.parametrize(
    ("trees", "message"),
    [
        ([], "has no pod"), ([{"kind": "Service", "spec": {"type": "x"}}], "has no pod"),
        ([[POD]], "has no pod"), ([POD, POD], "has 2 pods"),
        ([{"kind": "Job", "spec": {"template": "x"}}], "has no pod"),
    ],
)  # fmt: skip
def test_file_must_have_exactly_one_pod(trees: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pod(*trees)


@pytest.mark.parametrize(
    "text",
    ["{", "a: b: c", "\x00", "- &a [*a]\n- kind: Pod\n  x: *b", "kind: Pod\nspec: &a {x: *a}",
     f"{alias_bomb(9)}\nkind: Pod"],
)  # fmt: skip
def test_invalid_recursive_or_exploding_yaml_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="neither YAML nor JSON"):
        pod_in_file(FILE, text)


@given(st.text(max_size=80))
def test_arbitrary_text_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        pod_in_file(FILE, text)


def test_of_thousands_of_pods_those_stay_that_wait_or_are_new() -> None:
    """Records of old pods come first, and most of them are not taken."""
    candidates: dict[bytes, Candidate] = {}
    for number in range(10_000):
        is_pending = number == 5000
        pod = Candidate(is_pending, f"{number:05}", b"%d" % number, "Deployment/shop/web")
        add_candidate(candidates, pod.record, pod)
        assert len(candidates) <= 2000
    waiting, newest = sorted(candidates.values(), reverse=True)[:2]
    assert (waiting.record, newest.record) == (b"5000", b"9999")
