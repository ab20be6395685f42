"""Strategic merge patches by the API server's schema, and results that are no pods.

The expected results are those of `kubectl patch --type strategic`;
`tests/cluster/test_webhook.py` compares the two on a real API server.
"""

from typing import Any

import pytest

from pipeline.errors import InvalidPolicyError
from pipeline.processors.admission.pod_schema import PodSchema
from tests.processors.admission.pods import schema

POD: dict[str, Any] = {
    "metadata": {"labels": {"a": "1", "b": "2"}},
    "spec": {
        "containers": [
            {
                "name": "main", "image": "i", "args": ["x"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            },
            {"name": "side", "image": "s"},
        ],
        "tolerations": [{"key": "old", "operator": "Exists"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    },
}  # fmt: skip


def merged(spec: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema().merged(POD, {"spec": spec})["spec"]
    return found


def test_maps_are_merged_and_null_removes() -> None:
    patch = {"metadata": {"labels": {"a": None, "c": "3"}}}
    assert schema().merged(POD, patch)["metadata"] == {"labels": {"b": "2", "c": "3"}}
    assert POD["metadata"]["labels"] == {"a": "1", "b": "2"}


def test_containers_are_merged_by_name_and_other_lists_replaced() -> None:
    main = {"name": "main", "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]}
    spec = merged(
        {
            "containers": [{**main, "args": ["y", "z"]}, {"name": "new", "image": "n"}],
            "tolerations": [{"operator": "Exists"}],
        }
    )
    assert [(c["name"], c.get("image")) for c in spec["containers"]] == [
        ("main", "i"), ("new", "n"), ("side", "s"),
    ]  # fmt: skip
    assert spec["containers"][0]["args"] == ["y", "z"]
    assert spec["containers"][0]["env"] == [
        {"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"},
    ]  # fmt: skip
    assert spec["tolerations"] == [{"operator": "Exists"}]


def test_directives_delete_replace_and_retain() -> None:
    assert [
        c["name"]
        for c in merged({"containers": [{"name": "side", "$patch": "delete"}]})["containers"]
    ] == ["main"]
    replaced = merged({"containers": [{"$patch": "replace"}, {"name": "only", "image": "o"}]})
    assert replaced["containers"] == [{"name": "only", "image": "o"}]
    volume = {"name": "v", "$retainKeys": ["name", "configMap"], "configMap": {"name": "c"}}
    assert merged({"volumes": [volume]})["volumes"] == [{"name": "v", "configMap": {"name": "c"}}]
    own = {"$patch": "replace", "runAsUser": 1}
    assert merged({"securityContext": own})["securityContext"] == {"runAsUser": 1}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"priority": "high"}, "spec.priority is no integer: 'high'"),
        ({"containers": None}, "spec.containers is missing"),
        ({"containers": [{"name": "a", "env": [{"name": "x"}, {"value": "y"}]}]}, "without name"),
        ({"priority": True}, "spec.priority is no integer: True"),
        ({"hostNetwork": 1}, "spec.hostNetwork is no boolean"),
        ({"containers": "x"}, "spec.containers is no array"),
        ({"containers": [{"image": "x"}]}, "spec.containers has an entry without name"),
        ({"containers": ["x"]}, "spec.containers has an entry that is no mapping"),
        ({"containers": [{"name": "a", "args": [1]}]}, "args[0] is no string"),
        ({"nodeSelector": {"a": 1}}, "spec.nodeSelector.a is no string"),
        ({"$setElementOrder/containers": []}, "$setElementOrder/containers is not supported"),
        ({"$patch": "erase"}, "has the directive $patch: 'erase'"),
        ({"$retainKeys": 1}, "$retainKeys is no list"),
        ({"containers": [{"name": "a", "resources": {"limits": {"cpu": []}}}]}, "cpu is no"),
    ],
)  # fmt: skip
def test_what_the_api_server_could_not_decode_is_refused(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidPolicyError) as raised:
        merged(spec)
    assert says in raised.value.message


def test_numbers_texts_and_unknown_fields_that_kubernetes_takes_are_accepted() -> None:
    probe = {"httpGet": {"port": "http"}, "periodSeconds": 3}
    spec = {
        "containers": [
            {"name": "main", "livenessProbe": probe, "resources": {"limits": {"cpu": 1}}}
        ],
        "unknownField": {"any": [1, "x", None]},
    }
    assert merged(spec)["containers"][0]["livenessProbe"] == probe


def test_deep_patches_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(InvalidPolicyError, match="nested too deeply"):
        merged({"unknown": deep})


@pytest.mark.parametrize("document", [{}, {"components": []}, {"components": {"schemas": {}}}])
def test_document_without_pods_is_an_error(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicyError, match=r"no schema io\.k8s"):
        PodSchema(document)
