"""The fields of `config.koordinator.sh/v1alpha1 ClusterColocationProfile`, and their checks.

The object has no namespace. Docstrings become descriptions in its definition (`deploy/chart/crds`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.policy.selectors import (
    Selector,
    check_label_key,
    check_label_value,
    check_selector,
)
from pipeline.processors.slo.crd_fields import Document, Free, Int32
from pipeline.processors.slo.crd_schema import Kind

GROUP: Final = "config.koordinator.sh"
API_VERSION: Final = "config.koordinator.sh/v1alpha1"
PATH: Final = f"/apis/{API_VERSION}/clustercolocationprofiles"
NAME: Final = "ClusterColocationProfile"
SKIP_RESOURCES: Final = "config.koordinator.sh/skip-update-resources"
"""Annotation of a profile whose pods keep cpu and memory, whatever its value."""

_PERCENT: Final = re.compile(r"[0-9]{1,3}%")
_SUFFIX: Final = re.compile(r"[-A-Za-z0-9_.]*[A-Za-z0-9]")
_LARGEST_PRIORITY: Final = 2**31 - 1


class ProfileSpec(Document, frozen=True, kw_only=True):
    """What a profile changes in new pods, and in which.

    namespace_selector: Labels of the pod's namespace. Without it every namespace matches.
    selector: Labels of the pod. Without it every pod matches.
    probability: Share of the matching pods that are changed, such as 30% or 30.
    qos_class: Becomes the label koordinator.sh/qosClass.
    priority_class_name: The PriorityClass, whose value becomes the pod's priority.
    koordinator_priority: Becomes the label koordinator.sh/priority, the order within a class.
    labels: Labels that are set.
    annotations: Annotations that are set.
    label_keys_mapping: Copies the value of the label in the key to the label in the value.
    annotation_keys_mapping: Copies the value of the annotation in the key to that in the value.
    label_suffixes: Texts that are appended to the values of labels.
    scheduler_name: The scheduler that places the pod.
    patch: A strategic merge patch of the pod.
    """

    namespace_selector: Selector | None = None
    selector: Selector | None = None
    probability: int | str | None = None
    qos_class: Literal["LSE", "LSR", "LS", "BE", "SYSTEM"] | None = None
    priority_class_name: str | None = None
    koordinator_priority: Int32 | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    label_keys_mapping: dict[str, str] | None = None
    annotation_keys_mapping: dict[str, str] | None = None
    label_suffixes: dict[str, str] | None = None
    scheduler_name: str | None = None
    patch: Free | None = None


class ClusterColocationProfile(Document, frozen=True, kw_only=True):
    """A rule by which new pods get their quality of service, priority and resources.

    status: Not used.
    """

    api_version: Literal["config.koordinator.sh/v1alpha1"]
    kind: Literal["ClusterColocationProfile"]
    metadata: Free
    spec: ProfileSpec = ProfileSpec()
    status: Free | None = None


DEFINITION: Final = Kind(
    ClusterColocationProfile,
    (
        ("QoS", "string", ".spec.qosClass"),
        ("Priority", "string", ".spec.priorityClassName"),
        ("Probability", "string", ".spec.probability"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ),
    group=GROUP,
    short_names=("ccp",),
)
"""The custom resource, with the columns of kubectl."""


class Profile(NamedTuple):
    """A valid profile. `percent` is the share of matching pods that it changes; `keeps_resources`:
    cpu and memory of its pods are not translated."""

    name: str
    spec: ProfileSpec
    percent: int
    keeps_resources: bool


class ProfileHead(NamedTuple):
    """Name, uid and generation of a profile that need not be valid."""

    name: str
    uid: str
    generation: int


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    uid: str = ""
    generation: int = 0
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()


class _Body(msgspec.Struct, frozen=True):
    spec: ProfileSpec | None = None


_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)


def profile_head(encoded: bytes | msgspec.Raw) -> ProfileHead:
    """Name, uid and generation. Raises `InvalidPolicyError` for an object without a name."""
    try:
        metadata = msgspec.json.decode(encoded, type=_Object).metadata
    except _UNREADABLE as error:
        raise InvalidPolicyError(f"not a {NAME}: {error}") from error
    if not metadata.name:
        raise InvalidPolicyError(f"not a {NAME}: metadata.name is missing")
    return ProfileHead(metadata.name, metadata.uid, metadata.generation)


def read_profile(encoded: bytes | msgspec.Raw) -> Profile:
    """Decode and check a profile. Raises `InvalidPolicyError` with the first problem.

    The API server checks types only where the definition in `deploy/chart/crds` is installed, and
    never whether labels are valid: a pod with an invalid label would be refused.
    """
    try:
        metadata = msgspec.json.decode(encoded, type=_Object).metadata
        spec = msgspec.json.decode(encoded, type=_Body).spec or ProfileSpec()
    except _UNREADABLE as error:
        raise InvalidPolicyError(f"not a {NAME}: {error}") from error
    percent = _checked(spec)
    annotations = metadata.annotations or {}
    return Profile(metadata.name, spec, percent, SKIP_RESOURCES in annotations)


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise `InvalidPolicyError` for what cannot be labels of an object."""
    for key, value in labels.items():
        check_label_key(key)
        check_label_value(value)


def check_keys(keys: Iterable[str]) -> None:
    """Raise `InvalidPolicyError` for what cannot be keys of labels or annotations."""
    for key in keys:
        check_label_key(key)


def _checked(spec: ProfileSpec) -> int:
    """Check a spec; returns its probability in percent. Raises `InvalidPolicyError`."""
    for name, selector in (
        ("namespaceSelector", spec.namespace_selector),
        ("selector", spec.selector),
    ):
        with _field(name):
            check_selector(selector or Selector())
    with _field("labels"):
        check_labels(spec.labels or {})
    with _field("annotations"):
        check_keys(spec.annotations or ())
    for name, mapping in (
        ("labelKeysMapping", spec.label_keys_mapping or {}),
        ("annotationKeysMapping", spec.annotation_keys_mapping or {}),
    ):
        with _field(name):
            check_keys((*mapping, *mapping.values()))
    with _field("labelSuffixes"):
        check_keys(spec.label_suffixes or ())
        for suffix in (spec.label_suffixes or {}).values():
            if suffix and not _SUFFIX.fullmatch(suffix):
                raise InvalidPolicyError(f"{suffix!r:.100} cannot end the value of a label")
    priority = spec.koordinator_priority or 0
    with _field("koordinatorPriority"):
        if not 0 <= priority <= _LARGEST_PRIORITY:
            raise InvalidPolicyError(f"{priority} is not from 0 to {_LARGEST_PRIORITY}")
    with _field("patch"):
        _check_patch(spec.patch or {})
    with _field("probability"):
        return _percent(spec.probability)


@contextmanager
def _field(name: str) -> Iterator[None]:
    try:
        yield
    except InvalidPolicyError as error:
        raise InvalidPolicyError(f"spec.{name}: {error.message}") from error


def _percent(given: int | str | None) -> int:
    if given is None:
        return 100
    if isinstance(given, str):
        if not _PERCENT.fullmatch(given):
            raise InvalidPolicyError(f"{given!r:.40} is no percentage such as 30%")
        given = int(given.removesuffix("%"))
    if not 0 <= given <= 100:
        raise InvalidPolicyError(f"{given} is not from 0 to 100")
    return given


def _check_patch(patch: Mapping[str, Any]) -> None:
    """A patch changes labels, annotations and the spec of a pod, and neither its identity nor what
    its kubelet reports."""
    metadata = patch.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise InvalidPolicyError("metadata is no mapping")
    others = sorted(patch.keys() - {"apiVersion", "kind", "metadata", "spec"})
    # kubectl writes creationTimestamp: null.
    stated = {key for key, value in metadata.items() if value is not None}
    others += [f"metadata.{key}" for key in sorted(stated - {"labels", "annotations"})]
    if others:
        raise InvalidPolicyError(
            f"it has {others[0]:.100}, and may have metadata.labels, metadata.annotations and spec"
        )
