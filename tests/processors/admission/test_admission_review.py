"""AdmissionReviews, also hostile ones."""

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import BadRequestError
from pipeline.processors.admission.admission_review import (
    MOST_AUDIT_CHARACTERS,
    answer,
    read_object,
    read_review,
)

HEAD = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}


def review(**request: Any) -> bytes:
    return json.dumps({**HEAD, "request": {"uid": "u", **request}}).encode()


def test_request_of_a_review() -> None:
    request = read_review(
        review(operation="CREATE", namespace="n", kind={"group": "", "version": "v1",
               "kind": "Pod"}, object={"a": 1}, oldObject=None, dryRun=True, options={})
    )  # fmt: skip
    assert (request.uid, request.operation, request.kind.kind) == ("u", "CREATE", "Pod")
    assert read_object(request.object) == {"a": 1}
    with pytest.raises(BadRequestError, match="no object"):
        read_object(request.old_object)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no AdmissionReview"),
        (b"{", "no AdmissionReview"),
        (b"\xff\xfe", "no AdmissionReview"),
        (b"[" * 100_000, "no AdmissionReview"),
        (b'{"request": ' * 50_000, "no AdmissionReview"),
        (b"[]", "no AdmissionReview"),
        (b"{}", "instead of admission.k8s.io/v1 AdmissionReview"),
        (json.dumps({**HEAD, "apiVersion": "admission.k8s.io/v1beta1"}).encode(), "v1beta1"),
        (json.dumps({**HEAD, "kind": "Pod"}).encode(), "'Pod' instead of"),
        (json.dumps(HEAD).encode(), "no request with a uid"),
        (json.dumps({**HEAD, "request": {"uid": ""}}).encode(), "no request with a uid"),
        (json.dumps({**HEAD, "request": {"uid": 1}}).encode(), "no AdmissionReview"),
        (json.dumps({**HEAD, "request": []}).encode(), "no AdmissionReview"),
    ],
)
def test_what_is_no_review_is_an_error(body: bytes, says: str) -> None:
    with pytest.raises(BadRequestError) as raised:
        read_review(body)
    assert says in raised.value.message


@given(st.binary(max_size=200))
def test_any_bytes_are_a_review_or_an_error(body: bytes) -> None:
    try:
        read_review(body)
    except BadRequestError as error:
        assert error.hint


def test_answers() -> None:
    patch = [{"op": "remove", "path": "/a"}]
    changed = json.loads(answer("u", patch=patch, audit={"profiles": "a"}))
    assert {key: changed[key] for key in HEAD} == HEAD
    encoded = changed["response"].pop("patch")
    assert json.loads(base64.b64decode(encoded)) == patch
    assert changed["response"] == {
        "uid": "u", "allowed": True, "patchType": "JSONPatch",
        "auditAnnotations": {"profiles": "a"},
    }  # fmt: skip
    refused = json.loads(answer("u", refused="no", audit={"x": "y" * 10_000}))["response"]
    assert (refused["allowed"], refused["status"]["message"]) == (False, "no")
    assert len(refused["auditAnnotations"]["x"]) == MOST_AUDIT_CHARACTERS
    assert msgspec.json.decode(answer("u"))["response"] == {"uid": "u", "allowed": True}
