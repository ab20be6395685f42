"""Kubernetes objects become records by Kubernetes' own rules."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError
from pipeline.processors.kubernetes.object_records import (
    USAGE_THRESHOLDS,
    WRITTEN_THRESHOLDS,
    cgroup_uid,
    node_record,
    pod_record,
)
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.nodes import Condition, NodeRecord, Taint
from pipeline.topics.pods import Container, Owner, PodRecord
from pipeline.topics.resource_amounts import LARGEST_AMOUNT, Resources


def node(**changes: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "node-1", "uid": "u-1", "labels": {"zone": "b"},
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{}" * 100, "note": "x",
            },
            "creationTimestamp": "2023-11-14T22:13:20Z", "managedFields": [{"manager": "kubelet"}],
        },
        "spec": {
            "podCIDR": "10.0.0.0/24", "unschedulable": True,
            "taints": [{"key": "dedicated", "value": "shop", "effect": "NoSchedule"}],
        },
        "status": {
            "allocatable": {"cpu": "3800m", "memory": "15Gi", "pods": "110", "hugepages-2Mi": "0"},
            "capacity": {"cpu": "4", "memory": "16777216Ki", "ephemeral-storage": "100Gi"},
            "conditions": [
                {
                    "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "m",
                    "lastTransitionTime": "2023-11-14T22:13:30Z", "lastHeartbeatTime": None,
                }
            ],
            "images": [{"names": ["x"], "sizeBytes": 1}],
        },
    }  # fmt: skip
    return tree | changes


@pytest.mark.parametrize(("written", "is_left"), [("{}", False), ("[]", True), (None, True)])
def test_thresholds_that_the_actuator_wrote_are_left_out_of_the_record(
    written: str | None, is_left: bool
) -> None:
    own = {} if written is None else {WRITTEN_THRESHOLDS: written}
    record = node_record(
        node(metadata={"name": "n", "annotations": {USAGE_THRESHOLDS: "{}"} | own})
    )
    assert record.annotations == ({USAGE_THRESHOLDS: "{}"} if is_left else {})


def container(name: str = "main", requests: Any = None, limits: Any = None, **more: Any) -> Any:
    return {"name": name, "resources": {"requests": requests, "limits": limits}, **more}


def pod(spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": "cart-0", "namespace": "shop", "uid": "p-1", **metadata},
        "spec": {"nodeName": "node-1", "containers": [container()], **(spec or {})},
        "status": {"phase": "Running"},
    }


def amounts(cpu: int | None = None, memory: int | None = None) -> Resources:
    return Resources(cpu_millicores=cpu, memory_bytes=memory)


# ---- nodes


def test_every_field_of_a_node_is_recorded() -> None:
    assert node_record(node()) == NodeRecord(
        node="node-1",
        uid="u-1",
        allocatable=amounts(3800, 15 * 2**30),
        capacity=amounts(4000, 16 * 2**30),
        labels={"zone": "b"},
        annotations={"note": "x"},
        taints=(Taint(key="dedicated", value="shop", effect="NoSchedule"),),
        unschedulable=True,
        conditions=(
            Condition(
                type="Ready",
                status="True",
                reason="KubeletReady",
                last_transition_time="2023-11-14T22:13:30Z",
            ),
        ),
        scalars={"pods": 110},
    )


def test_missing_amounts_of_a_node_are_unknown_and_zero_is_zero() -> None:
    assert node_record({"metadata": {"name": "n"}}) == NodeRecord(node="n")
    record = node_record(node(status={"allocatable": {"cpu": "0"}, "capacity": None}))
    assert (record.allocatable, record.capacity) == (amounts(0, None), Resources())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"metadata": None}, "metadata"),
        ({"metadata": {}}, "name"),
        ({"metadata": {"name": "A b"}}, "node name"),
        ({"metadata": {"name": "n" * 300}}, "300 bytes"),
        ({"metadata": {"name": 5}}, r"\$\.metadata\.name"),
        ({"metadata": {"name": "n", "labels": {"a": 1}}}, "labels"),
        ({"status": {"allocatable": {"cpu": "4 cores"}}}, "status.allocatable: cpu: '4 cores'"),
        ({"status": {"allocatable": {"cpu": True}}}, "allocatable"),
        (
            {"status": {"capacity": {"memory": "-1"}}},
            "status.capacity: memory: an amount is negative",
        ),
        ({"status": {"conditions": [{"type": "Ready"}]}}, "status"),
        ({"spec": {"taints": [{"effect": "x"}]}}, "key"),
        ({"spec": "x"}, r"\$\.spec"),
    ],
)
def test_an_invalid_node_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRecordError, match=says):
        node_record(node(**changes))


# ---- pods


def test_amounts_of_a_tenant_that_exceed_int64_are_capped() -> None:
    huge = {"cpu": "7E", "memory": "7Ei", "shop.io/tokens": "7E"}
    record = pod_record(pod({"containers": [container(limits=huge)] * 100, "overhead": huge}))
    most = Resources(cpu_millicores=LARGEST_AMOUNT, memory_bytes=LARGEST_AMOUNT)
    assert record.limits == record.containers[0].limits == record.overhead == most
    assert record.scalars == {"shop.io/tokens": LARGEST_AMOUNT}


def test_every_field_of_a_pod_is_recorded() -> None:
    tree = pod(
        {
            "priority": 9500,
            "containers": [container(requests={"cpu": "250m", "memory": "256Mi"})],
            "initContainers": [
                container("mesh", limits={"cpu": 1, "nvidia.com/gpu": 1}, restartPolicy="Always")
            ],
            "overhead": {"cpu": "10m", "ephemeral-storage": "1Ki"},
            "nodeSelector": {"zone": "b"},
            "affinity": {"nodeAffinity": {"x": [1, None]}},
            "tolerations": [{"operator": "Exists"}],
            "volumes": [{"name": "v"}],
        },
        labels={"app": "cart"},
        annotations={"a": "1"},
        ownerReferences=[
            {"kind": "Other", "name": "o", "apiVersion": "v1"},
            {"kind": "StatefulSet", "name": "cart", "controller": True},
        ],
        creationTimestamp="2023-11-14T21:13:30Z",
        deletionTimestamp="2023-11-14T23:13:30+01:00",
    )
    tree["status"] |= {"startTime": "2023-11-14T21:13:33Z", "qosClass": "Burstable"}
    main = Container(name="main", requests=amounts(250, 2**28))
    gpu = {"nvidia.com/gpu": 1}
    mesh = Container(name="mesh", limits=amounts(1000), scalars=gpu, restartable=True)
    assert pod_record(tree) == PodRecord(
        node="node-1",
        uid="p-1",
        cgroup_uid="p-1",
        namespace="shop",
        name="cart-0",
        owner=Owner(kind="StatefulSet", name="cart"),
        labels={"app": "cart"},
        annotations={"a": "1"},
        priority=9500,
        pod_class="prod",
        qos="LS",
        requests=amounts(260, 2**28),
        limits=amounts(1010),
        scalars={"nvidia.com/gpu": 1, "ephemeral-storage": 1024},
        scalar_limits={"nvidia.com/gpu": 1},
        overhead=amounts(10),
        scalar_overhead={"ephemeral-storage": 1024},
        containers=(main,),
        init_containers=(mesh,),
        node_selector={"zone": "b"},
        affinity={"nodeAffinity": {"x": [1, None]}},
        tolerations=({"operator": "Exists"},),
        phase="Running",
        created_at="2023-11-14T21:13:30Z",
        started_at="2023-11-14T21:13:33Z",
        deleted_at="2023-11-14T23:13:30+01:00",
    )


def test_ids_of_containers_and_sidecars_are_recorded_without_the_runtime() -> None:
    tree = pod({
        "containers": [container(), container("web"), container("late")],
        "initContainers": [container("setup"), container("mesh", restartPolicy="Always")],
    })  # fmt: skip
    assert pod_record(tree).container_ids == {}
    tree["status"] |= {
        "containerStatuses": [
            {"name": "main", "containerID": "containerd://a1", "state": {"running": {}}},
            # It crashed: the id is that of its former run.
            {"name": "web", "containerID": "cri-o://b2", "state": {"waiting": {}}},
            {"name": "late", "containerID": "", "state": {"waiting": {}}},
            {"name": "stranger", "containerID": "docker://c3"},
        ],
        "initContainerStatuses": [
            {"name": "setup", "containerID": "containerd://d4"},
            {"name": "mesh", "containerID": "pouch://e5"},
        ],
    }
    assert pod_record(tree).container_ids == {"main": "a1", "web": "b2", "mesh": "e5"}


def test_the_last_oom_kill_of_each_container_and_sidecar_is_recorded() -> None:
    tree = pod({
        "containers": [container(name) for name in ("again", "stopped", "evicted", "new", "never")],
        "initContainers": [container("setup"), container("mesh", restartPolicy="Always")],
    })  # fmt: skip
    assert pod_record(tree).oom_killed_at == {}

    def ended(reason: str, at: str | None) -> dict[str, Any]:
        return {"terminated": {"reason": reason, "exitCode": 137, "finishedAt": at}}

    first, second = "2023-11-14T21:13:35Z", "2023-11-14T21:14:35Z"
    kill = ended("OOMKilled", first)
    tree["status"] |= {
        "containerStatuses": [
            {"name": "again", "restartCount": 1, "state": {"running": {}}, "lastState": kill},
            {"name": "stopped", "state": ended("OOMKilled", second), "lastState": kill},
            {
                "name": "evicted",
                "state": ended("Error", second),
                "lastState": ended("Error", first),
            },
            {"name": "new", "state": {"waiting": {}}, "lastState": {}},
            {"name": "never", "state": ended("OOMKilled", None)},
            {"name": "stranger", "state": kill},
        ],
        "initContainerStatuses": [
            {"name": "setup", "state": kill},
            {"name": "mesh", "state": ended("Error", second), "lastState": kill},
        ],
    }
    killed_at = {"again": first, "stopped": second, "mesh": first}
    assert pod_record(tree).oom_killed_at == killed_at


@pytest.mark.parametrize(
    "text", ["a1", "crio://a1", "containerd://", "docker://../a1", "docker://..", "docker://a/b", "docker://a\n",
             "docker://" + "a" * 129, "remote://docker://a1"],
)  # fmt: skip
def test_an_id_of_an_unknown_form_is_left_out(text: str) -> None:
    tree = pod()
    tree["status"]["containerStatuses"] = [{"name": "main", "containerID": text}]
    assert pod_record(tree).container_ids == {}


def test_times_of_scheduling_and_initialization_come_from_conditions() -> None:
    def at(type: str, status: str, time: str | None) -> dict[str, Any]:
        return {"type": type, "status": status, "lastTransitionTime": time}

    tree = pod()
    tree["status"]["conditions"] = [
        at("Ready", "True", "2023-11-14T21:13:35Z"),
        at("PodScheduled", "True", "2023-11-14T21:13:31Z"),
        at("Initialized", "False", "2023-11-14T21:13:32Z"),
    ]
    result = pod_record(tree)
    assert (result.scheduled_at, result.initialized_at) == ("2023-11-14T21:13:31Z", None)
    tree["status"]["conditions"] = [at("PodScheduled", "True", "soon")]
    with pytest.raises(InvalidRecordError, match="PodScheduled"):
        pod_record(tree)


def test_record_of_a_pod_is_written_and_read() -> None:
    record = pod_record(pod())
    assert decode_json(PodRecord, encode_json(record)) == record


def test_an_unscheduled_pod_has_the_empty_node() -> None:
    tree = pod()
    del tree["spec"]["nodeName"]
    assert pod_record(tree).node == ""


@pytest.mark.parametrize(
    ("labels", "priority", "status_qos", "requests", "expected"),
    [
        ({"koordinator.sh/priority-class": "koord-batch"}, None, "BestEffort", None,
         ("batch", "BE")),
        ({}, 7500, "Burstable", None, ("mid", "LS")),
        ({"koordinator.sh/qosClass": "LSE"}, None, "Guaranteed", None, ("prod", "LSE")),
        ({}, None, "BestEffort", None, ("batch", "BE")),
        ({}, None, None, None, ("batch", "BE")),
        ({}, None, None, {"cpu": "1"}, ("prod", "LS")),
        ({}, 0, "Burstable", None, ("prod", "LS")),
    ],
)  # fmt: skip
def test_class_and_qos(
    labels: dict[str, str], priority: int | None, status_qos: str | None, requests: Any,
    expected: tuple[str, str],
) -> None:  # fmt: skip
    tree = pod({"priority": priority, "containers": [container(requests=requests)]}, labels=labels)
    tree["status"]["qosClass"] = status_qos
    record = pod_record(tree)
    assert (record.pod_class, record.qos) == expected


@pytest.mark.parametrize(
    ("spec", "metadata", "says"),
    [
        ({"nodeName": "A b"}, {}, "node name"),
        ({}, {"uid": ""}, "metadata.uid"),
        ({}, {"uid": "a/b"}, "metadata.uid"),
        ({}, {"uid": None}, "metadata.uid"),
        ({"containers": [container("web", {"cpu": "1 core"})]}, {}, "container web: cpu: '1 core'"),
        ({"containers": [{}]}, {}, r"containers\[0\]|name"),
        ({"containers": "x"}, {}, "containers"),
        ({"overhead": {"cpu": "x"}}, {}, "spec.overhead: cpu"),
        ({"overhead": {"ephemeral-storage": "x"}}, {}, "spec.overhead: ephemeral-storage"),
        ({"resources": {"limits": {"hugepages-2Mi": "x"}}}, {}, "spec.resources: hugepages-2Mi"),
        *(
            ({"containers": [container("a", **{kind: {"example.com/fpga": amount}})]}, {},
             "example.com/fpga")
            for kind in ("requests", "limits")
            for amount in ("-1", "many")
        ),
        ({"priority": "high"}, {}, "priority"),
        ({}, {"creationTimestamp": "yesterday"}, "creationTimestamp is 'yesterday'"),
        ({}, {"creationTimestamp": "2023-13-45T00:00:00Z"}, "creationTimestamp"),
        ({}, {"deletionTimestamp": 5}, "deletionTimestamp"),
    ],
)  # fmt: skip
def test_an_invalid_pod_is_refused(
    spec: dict[str, Any], metadata: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRecordError, match=says):
        pod_record(pod(spec, **metadata))


_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["metadata", "name", "uid", "spec", "status", "containers", "resources", "requests",
             "cpu", "memory", "allocatable", "labels", "annotations", "nodeName"]
        ),
        inner, max_size=5,
    ),
    max_leaves=15,
)  # fmt: skip


@given(_trees)
def test_any_tree_is_a_record_or_refused(tree: Any) -> None:
    for convert in (node_record, pod_record):
        with suppress(InvalidRecordError):
            encode_json(convert(tree))
        for part in ("metadata", "spec", "status"):
            for good in (node(), pod()):
                with suppress(InvalidRecordError):
                    encode_json(convert(good | {part: tree}))


def test_a_recursive_tree_is_refused() -> None:
    tree: dict[str, Any] = pod()
    deep: dict[str, Any] = {}
    tree["spec"]["affinity"] = deep
    for _ in range(100_000):
        deep["a"] = {}
        deep = deep["a"]
    with pytest.raises(InvalidRecordError, match="nested too deeply"):
        pod_record(tree)


# ---- static pods


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"hash": "abc", "mirror": "abc"}, "abc"),
        ({"hash": "abc", "mirror": "abc", "source": "file"}, "abc"),
        ({"hash": "abc", "source": "http"}, "abc"),
        # An annotation cannot take over the cgroup of another pod.
        ({"hash": "victim"}, "u"),
        ({"hash": "victim", "source": "api"}, "u"),
        ({"mirror": "x"}, "u"),
        ({}, "u"),
    ],
)
def test_static_pods_alone_have_the_cgroup_of_their_hash(
    config: dict[str, str], expected: str
) -> None:
    annotations = {f"kubernetes.io/config.{name}": value for name, value in config.items()}
    assert cgroup_uid("u", annotations) == expected
