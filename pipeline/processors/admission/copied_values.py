"""Former values of labels and annotations that profiles copied and changed.

A profile may copy the value of a label and append a suffix to that label, or a later profile may
set it. A second review of the pod would copy the changed value. An annotation has the value that
was copied; a review puts it back before profiles are applied, unless somebody else has changed the
label since. Only pods that a second review would change have the annotation.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from pipeline.processors.admission.colocation_profile import ProfileSpec

COPIED_ANNOTATION: Final = "springtide.io/admission-copied"
_MOST_BYTES: Final = 16 * 2**10
"""A pod whose copied values are longer has no annotation."""

JsonObject = dict[str, Any]
_Changes = dict[str, tuple[str | None, str | None]]
"""The value before and after a review; None where there is none."""


class _Copied(msgspec.Struct, omit_defaults=True):
    labels: _Changes = {}
    annotations: _Changes = {}


def with_copied_values(pod: JsonObject) -> JsonObject:
    """The pod with the values that its last review copied; the given one stays as it is."""
    metadata = pod.get("metadata") or {}
    annotations = dict(metadata.get("annotations") or {})
    text = annotations.pop(COPIED_ANNOTATION, None)
    if text is None:
        return pod
    try:
        copied = msgspec.json.decode(text, type=_Copied)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        copied = _Copied()
    labels = _put_back(metadata.get("labels") or {}, copied.labels)
    annotations = _put_back(annotations, copied.annotations)
    return pod | {"metadata": metadata | {"labels": labels, "annotations": annotations}}


def copied_values(
    before: JsonObject, after: JsonObject, specs: Iterable[ProfileSpec]
) -> str | None:
    """The annotation of a pod that these profiles have changed; None if they copied no value that
    has changed."""
    specs = list(specs)
    copied = _Copied(
        _changes(before, after, "labels", [spec.label_keys_mapping for spec in specs]),
        _changes(before, after, "annotations", [spec.annotation_keys_mapping for spec in specs]),
    )
    text = msgspec.json.encode(copied, order="sorted")
    has_any = copied.labels or copied.annotations
    return text.decode() if has_any and len(text) <= _MOST_BYTES else None


def _changes(
    before: JsonObject, after: JsonObject, name: str, mappings: Iterable[Mapping[str, str] | None]
) -> _Changes:
    old, new = ((pod.get("metadata") or {}).get(name) or {} for pod in (before, after))
    keys = {key for mapping in mappings for key in mapping or ()}
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


def _put_back(texts: Mapping[str, str], changes: _Changes) -> dict[str, str]:
    former = {key: old for key, (old, new) in changes.items() if texts.get(key) == new}
    return {key: text for key, text in {**texts, **former}.items() if text is not None}
