"""Fields and checks of a ClusterColocationProfile."""

from typing import Any

import pytest

from pipeline.errors import InvalidPolicyError
from pipeline.processors.admission.colocation_profile import (
    DEFINITION,
    profile_head,
    read_profile,
)
from tests.crds import path_of, text_of
from tests.processors.admission.pods import encoded, profile


def test_definition_in_deploy_is_made_of_the_fields() -> None:
    assert path_of(DEFINITION).read_text() == text_of(DEFINITION)


@pytest.mark.parametrize(
    ("given", "percent"), [(None, 100), (30, 30), ("30%", 30), (0, 0), ("100%", 100)]
)
def test_probability_is_a_number_or_a_percentage(given: object, percent: int) -> None:
    assert profile(probability=given).percent == percent


def test_annotation_keeps_resources_whatever_its_value() -> None:
    key = "config.koordinator.sh/skip-update-resources"
    assert profile(noted={key: ""}).keeps_resources
    assert not profile().keeps_resources


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"probability": "half"}, "spec.probability: 'half' is no percentage"),
        ({"probability": "30"}, "spec.probability"),
        ({"probability": 101}, "101 is not from 0 to 100"),
        ({"probability": -1}, "-1 is not from 0 to 100"),
        ({"qosClass": "BEST"}, "BEST"),
        ({"koordinatorPriority": -5}, "-5 is not from 0"),
        ({"koordinatorPriority": 2**31}, "not from 0 to 2147483647"),
        ({"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}, "spec.selector"),
        ({"namespaceSelector": {"matchLabels": {"-": "x"}}}, "spec.namespaceSelector"),
        ({"labels": {"a b": "c"}}, "spec.labels: 'a b' is not the key of a label"),
        ({"labels": {"a": "c d"}}, "is not the value of a label"),
        ({"labels": {"a": 1}}, "str"),
        ({"annotations": {"a/b/c": "any text"}}, "spec.annotations"),
        ({"labelKeysMapping": {"a": ""}}, "spec.labelKeysMapping"),
        ({"annotationKeysMapping": {"": "a"}}, "spec.annotationKeysMapping"),
        ({"labelSuffixes": {"a": "-"}}, "cannot end the value of a label"),
        ({"labelSuffixes": {"a": " x"}}, "cannot end the value of a label"),
        ({"patch": {"status": {}}}, "spec.patch: it has status"),
        ({"patch": {"metadata": {"name": "other"}}}, "spec.patch: it has metadata.name"),
        ({"patch": {"metadata": "x"}}, "metadata is no mapping"),
        ({"patch": []}, "object"),
    ],
)  # fmt: skip
def test_invalid_fields_are_named(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidPolicyError) as raised:
        read_profile(encoded(**spec))
    assert says in raised.value.message


def test_patch_as_kubectl_writes_a_template_is_valid() -> None:
    patch = {"metadata": {"creationTimestamp": None, "labels": {"a": "b"}}, "spec": {}}
    assert profile(patch=patch).spec.patch == patch


def test_values_of_annotations_may_be_any_text() -> None:
    given = {"example.com/x": "any text: {}\n"}
    assert profile(annotations=given).spec.annotations == given


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 100_000, b'{"metadata": {}}', b"\xff"])
def test_what_is_no_object_is_an_error(text: bytes) -> None:
    with pytest.raises(InvalidPolicyError, match="not a ClusterColocationProfile"):
        profile_head(text)
    if text != b'{"metadata": {}}':
        with pytest.raises(InvalidPolicyError, match="not a ClusterColocationProfile"):
            read_profile(text)
