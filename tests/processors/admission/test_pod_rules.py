"""Pods that are refused, by Koordinator's rules."""

from typing import Any

import pytest

from pipeline.errors import InvalidRecordError
from pipeline.processors.admission.pod_rules import creation_problems, update_problems
from tests.processors.admission.pods import container, pod

QOS = "koordinator.sh/qosClass"
PRIORITIES = {"prod": 9000, "mid": 7000, "batch": 5000, "free": 3000, "none": 0}


def of_class(qos: str, priority_class: str, **resources: Any) -> dict[str, Any]:
    """A pod whose priority names the class."""
    labels = {QOS: qos} if qos else {}
    resources = resources or {"requests": {"cpu": "1"}}
    return pod(container(**resources), labels=labels, priority=PRIORITIES[priority_class])


@pytest.mark.parametrize(
    ("qos", "allowed"),
    [
        ("", "prod mid batch free none"),
        ("LSE", "prod mid batch free none"),
        ("LSR", "prod"),
        ("LS", "prod mid batch free none"),
        ("BE", "mid batch free"),
        ("SYSTEM", "prod mid batch free none"),
        ("unknown", "prod mid batch free none"),
    ],
)
def test_pairs_of_qos_and_class(qos: str, allowed: str) -> None:
    """The table of Koordinator's webhook: BE forbids none and prod, LSR all but prod."""
    admitted = {name for name in PRIORITIES if not creation_problems(of_class(qos, name))}
    assert admitted == set(allowed.split())


def test_class_label_counts_before_the_priority() -> None:
    labels = {QOS: "BE", "koordinator.sh/priority-class": "koord-batch"}
    assert creation_problems(pod(labels=labels, priority=9500)) == []
    labels["koordinator.sh/priority-class"] = "koord-prod"
    (problem,) = creation_problems(pod(labels=labels, priority=5500))
    assert problem == (
        "labels[koordinator.sh/qosClass]=BE and the priority class koord-prod cannot be combined"
    )


@pytest.mark.parametrize("resource", ["kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"])
@pytest.mark.parametrize(("qos", "is_refused"), [("BE", False), ("LS", True), ("", True)])
def test_batch_resources_require_be(resource: str, qos: str, is_refused: bool) -> None:
    for part in ("requests", "limits"):
        problems = creation_problems(of_class(qos, "batch", **{part: {resource: "100"}}))
        assert bool(problems) is is_refused
        assert all("must be BE" in problem for problem in problems)
    assert creation_problems(of_class(qos, "batch", requests={resource: "0"})) == []


@pytest.mark.parametrize("qos", ["LSR", "LSE"])
@pytest.mark.parametrize(
    ("cpu", "says"),
    [("2", None), ("2000m", None), ("1500m", "whole CPUs, it requests 1500m"),
     ("0", "must request CPUs"), (None, "must request CPUs")],
)  # fmt: skip
def test_lsr_and_lse_request_whole_cpus(qos: str, cpu: str | None, says: str | None) -> None:
    requests = {"memory": "1Gi"} if cpu is None else {"cpu": cpu}
    problems = creation_problems(of_class(qos, "prod", requests=requests))
    assert [says in problem for problem in problems] == ([True] if says else [])  # type: ignore[operator]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({QOS: "LS"}, f"labels[{QOS}] of a pod cannot change: it is BE, and would be LS"),
        ({QOS: ""}, "it is BE, and would be not set"),
        ({"koordinator.sh/priority-class": "koord-free"}, "it is koord-batch, and would be koor"),
        ({"koordinator.sh/priority-class": "odd"}, "it is koord-batch, and would be not set"),
        ({"koordinator.sh/priority": "2"}, "it is 1, and would be 2"),
    ],
)
def test_qos_and_priority_cannot_change(change: dict[str, str], says: str) -> None:
    labels = {QOS: "BE", "koordinator.sh/priority": "1"}
    old, new = (pod(labels=given, priority=5000) for given in (labels, {**labels, **change}))
    (problem,) = update_problems(old, new)
    assert says in problem
    assert update_problems(old, old) == []


def test_priority_within_the_class_may_change_by_a_gate() -> None:
    old, new = (pod(labels={"koordinator.sh/priority": number}) for number in ("1", "2"))
    assert update_problems(old, new, checks_sub_priority=False) == []


def test_older_pod_that_breaks_a_rule_can_still_be_updated() -> None:
    """A job's controller removes its finalizer; refusing that would keep the job for ever."""
    old = of_class("BE", "prod")
    assert creation_problems(old) != []
    new = of_class("BE", "prod")
    old["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    assert update_problems(old, new) == []


@pytest.mark.parametrize("broken", [{"spec": 1}, {"metadata": {"labels": []}}])
def test_what_is_no_pod_is_an_error(broken: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecordError):
        creation_problems(broken)
    with pytest.raises(InvalidRecordError):
        update_problems(pod(), broken)


def test_mirror_pods_are_never_refused() -> None:
    """A pod that is refused would run all the same, and the scheduler would not count it."""
    wrong = pod(labels={"koordinator.sh/qosClass": "BE"}, priority=9500)
    assert creation_problems(wrong)
    wrong["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "hash"}
    assert creation_problems(wrong) == []
