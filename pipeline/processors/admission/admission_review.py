"""Read AdmissionReviews of `admission.k8s.io/v1`, and write the answers to them."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pipeline.errors import BadRequestError

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
MOST_AUDIT_CHARACTERS: Final = 4096
"""Of an audit annotation; longer ones are cut."""
REFUSED: Final = 403

JsonObject = dict[str, Any]


class ObjectKind(msgspec.Struct, frozen=True):
    """Group, version and kind of an object."""

    group: str = ""
    version: str = ""
    kind: str = ""


class ReviewRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The request under review. `object` is null in a deletion, `old_object` in a creation. A
    `dry_run` may leave no trace in the cluster."""

    uid: str
    kind: ObjectKind = ObjectKind()
    sub_resource: str | None = None
    namespace: str | None = None
    name: str | None = None
    operation: str = ""
    dry_run: bool | None = None
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: ReviewRequest | None = None


_reviews: Final = msgspec.json.Decoder(_Review)
_objects: Final = msgspec.json.Decoder(JsonObject)


def read_review(body: bytes) -> ReviewRequest:
    """The request of a review. Raises `BadRequestError` for what is no review."""
    try:
        review = _reviews.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadRequestError(f"the body is no {KIND}: {error}", hint=_HINT) from error
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        raise BadRequestError(
            f"the body is {review.api_version!r:.60} {review.kind!r:.60} instead of "
            f"{API_VERSION} {KIND}",
            hint=_HINT,
        )
    if review.request is None or not review.request.uid:
        raise BadRequestError(f"the {KIND} has no request with a uid", hint=_HINT)
    return review.request


_HINT: Final = "this path is for API servers: see deploy/chart/webhook"


def read_object(encoded: msgspec.Raw) -> JsonObject:
    """An object of a review. Raises `BadRequestError` for what is no JSON object."""
    try:
        return _objects.decode(encoded)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadRequestError(f"the request has no object: {error}", hint=_HINT) from error


def answer(
    uid: str,
    *,
    refused: str = "",
    patch: Sequence[JsonObject] = (),
    warnings: Sequence[str] = (),
    audit: Mapping[str, str] | None = None,
) -> bytes:
    """The answer to the review `uid`, as JSON: `refused` with a reason, else allowed, with a JSON
    Patch if one is given. `warnings` are shown to the client, `audit` goes to the audit log."""
    response: JsonObject = {"uid": uid, "allowed": not refused}
    if refused:
        response["status"] = {"code": REFUSED, "reason": "Forbidden", "message": refused}
    elif patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    if warnings:
        response["warnings"] = list(warnings)
    if audit:
        response["auditAnnotations"] = {
            key: value[:MOST_AUDIT_CHARACTERS] for key, value in audit.items()
        }
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})
