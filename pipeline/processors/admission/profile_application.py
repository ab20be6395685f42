"""Apply ClusterColocationProfiles to a new pod.

All profiles whose selectors match the pod as it was created are applied, in the order of their
names, so that a later one overrides an earlier one. A profile is applied whole or not at all: where
it cannot be applied to a pod, the pod is left as it was before the profile.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.errors import InvalidPolicyError, InvalidRecordError
from pipeline.processors.admission.colocation_profile import Profile, ProfileSpec, check_labels
from pipeline.processors.admission.copied_values import (
    COPIED_ANNOTATION,
    copied_values,
    with_copied_values,
)
from pipeline.processors.admission.pod_schema import PodSchema
from pipeline.processors.admission.tier_resources import extended_resource_spec, translate
from pipeline.processors.kubernetes.objects import CONFIG_MIRROR, PodObject, convert_object
from pipeline.processors.kubernetes.pod_classes import LABEL_QOS_CLASS, pod_class
from pipeline.processors.node_qos.eviction_victims import LABEL_SUB_PRIORITY
from pipeline.processors.node_qos.extended_resource_spec import ANNOTATION

SEED_ANNOTATION: Final = "springtide.io/admission-seed"
"""Annotation of a pod without a name to which a profile with a probability was matched: the UID of
its first review. A pod may be reviewed again after other webhooks, with another UID; the annotation
gives that review the same result."""
MOST_POD_BYTES: Final = 2**20
"""etcd stores objects of up to 1.5 MiB; a profile that makes a pod larger is not applied."""
_MOST_ANNOTATION_BYTES: Final = 256 * 2**10
_DRAWS: Final = 100

JsonObject = dict[str, Any]


class PriorityClass(NamedTuple):
    """What a pod gets from its PriorityClass."""

    value: int
    preemption_policy: str


class Cluster(NamedTuple):
    """What profiles refer to: PriorityClasses, labels of namespaces, and the schema of pods, which
    only patches need."""

    priority_classes: Mapping[str, PriorityClass]
    namespace_labels: Mapping[str, Mapping[str, str]]
    pod_schema: PodSchema | None


class Request(NamedTuple):
    """The request that creates a pod: its UID and the pod's namespace."""

    uid: str
    namespace: str


class Result(NamedTuple):
    """The pod as it is to be created. `applied` are names of profiles, `not_applied` the reason by
    name of a profile that matched and cannot be applied."""

    pod: JsonObject
    applied: tuple[str, ...]
    not_applied: Mapping[str, str]


def apply_profiles(
    pod: JsonObject,
    request: Request,
    profiles: Iterable[Profile],
    cluster: Cluster,
    *,
    translates: bool = True,
    writes_spec_annotation: bool = True,
) -> Result:
    """Apply the profiles that match a new pod, and translate its cpu and memory.

    `pod` is JSON and stays as it is. Resources are translated for the class that the pod has in the
    end, if a profile was applied and none of those keeps resources. Mirror pods stay as they are:
    their kubelet runs what its file says. Raises `InvalidRecordError` for what is no pod.
    """
    original = convert_object(pod, PodObject, "Pod")
    if CONFIG_MIRROR in original.metadata.annotations:
        return Result(pod, (), {})
    pod = with_copied_values(pod)
    labels = (pod.get("metadata") or {}).get("labels") or {}
    of_namespace = cluster.namespace_labels.get(request.namespace)
    not_applied: dict[str, str] = {}
    matching: list[Profile] = []
    for profile in sorted(profiles, key=lambda profile: profile.name):
        if profile.spec.selector is not None and not profile.spec.selector.matches(labels):
            continue
        if profile.spec.namespace_selector is not None:
            if of_namespace is None:
                not_applied[profile.name] = f"namespace {request.namespace} is not known yet"
                continue
            if not profile.spec.namespace_selector.matches(of_namespace):
                continue
        matching.append(profile)
    changed, seed = _copied(pod), _seed(original, request)
    if seed == request.uid and any(0 < profile.percent < 100 for profile in matching):
        _annotate(changed, SEED_ANNOTATION, seed)
    drawn = [profile for profile in matching if is_drawn(profile, seed)]
    while True:
        result, applied, refused = _all_applied(changed, drawn, cluster)
        not_applied |= refused
        # A label gets the suffixes of all profiles or none, and this counted one that is refused.
        if not any(profile.spec.label_suffixes for profile in drawn if profile.name in refused):
            break
        drawn = [profile for profile in drawn if profile.name not in refused]
    copied = copied_values(changed, result, (profile.spec for profile in applied))
    if copied is not None and _all_applied(result, drawn, cluster)[0] != result:
        _annotate(result, COPIED_ANNOTATION, copied)
    changed = result
    if translates and applied and not any(profile.keeps_resources for profile in applied):
        _translate(changed)
    if writes_spec_annotation:
        _note_resources(changed)
    return Result(changed, tuple(profile.name for profile in applied), not_applied)


def is_drawn(profile: Profile, seed: str) -> bool:
    """Whether a profile takes effect on the pod of this seed: for a share of `percent` of all pods,
    the same ones whenever a pod is reviewed, and independently of other profiles."""
    digest = hashlib.sha256(f"{profile.name}\0{seed}".encode()).digest()
    return int.from_bytes(digest[:8]) % _DRAWS < profile.percent


def _seed(pod: PodObject, request: Request) -> str:
    """What decides about probabilities: an identity that is the same in each review of a pod.

    The API server gives a pod its UID after the webhooks, and a pod of a workload its name. Such a
    pod has no identity but the review itself.
    """
    metadata = pod.metadata
    if metadata.name:
        return f"{request.namespace}/{metadata.name}"
    return metadata.annotations.get(SEED_ANNOTATION) or request.uid


def _all_applied(
    pod: JsonObject, profiles: Sequence[Profile], cluster: Cluster
) -> tuple[JsonObject, list[Profile], dict[str, str]]:
    """The pod that these profiles have changed, those that could be applied, and the reasons of the
    others by name."""
    applied: list[Profile] = []
    refused: dict[str, str] = {}
    suffixed: frozenset[str] = frozenset()
    for position, profile in enumerate(profiles):
        try:
            pod, suffixed = _applied(pod, profile, cluster, profiles[position + 1 :], suffixed)
        except (InvalidPolicyError, InvalidRecordError) as error:
            refused[profile.name] = error.message
        else:
            applied.append(profile)
    return pod, applied, refused


def _applied(
    pod: JsonObject, profile: Profile, cluster: Cluster, later: Sequence[Profile],
    suffixed: frozenset[str],
) -> tuple[JsonObject, frozenset[str]]:  # fmt: skip
    """A copy of the pod that a profile has changed, before the `later` ones, and the labels that
    have suffixes of this review; `suffixed` have some already. Raises `InvalidPolicyError` where it
    cannot, and `InvalidRecordError` if the result is no pod."""
    spec, former, pod = profile.spec, _priority(pod), _copied(pod)
    suffixed = _set_metadata(pod, spec, later, suffixed)
    if spec.scheduler_name:
        _mapping(pod, "spec")["schedulerName"] = spec.scheduler_name
    if spec.priority_class_name:
        _mapping(pod, "spec")["priorityClassName"] = spec.priority_class_name
    if spec.patch:
        if cluster.pod_schema is None:
            raise InvalidPolicyError("the API server has not served its schema of pods yet")
        pod = cluster.pod_schema.merged(pod, spec.patch)
    _check(pod if spec.patch else {**pod, "spec": {}})
    size = len(msgspec.json.encode(pod))
    if size > MOST_POD_BYTES:
        raise InvalidPolicyError(f"the pod would have {size} bytes")
    _settle_priority(pod, former, cluster)
    return pod, suffixed


def _priority(pod: JsonObject) -> tuple[Any, ...]:
    spec = pod.get("spec") or {}
    return tuple(spec.get(key) for key in ("priorityClassName", "priority", "preemptionPolicy"))


def _settle_priority(pod: JsonObject, former: tuple[Any, ...], cluster: Cluster) -> None:
    """Give the pod the priority of its class. The API server, which has set priorities before it
    calls webhooks, refuses a pod with another one."""
    name, *numbers = _priority(pod)
    if name == former[0] or not name:
        if (name, *numbers) != former:
            raise InvalidPolicyError("spec.patch sets a priority: name a priorityClassName instead")
        return
    known = cluster.priority_classes.get(name)
    if known is None:
        raise InvalidPolicyError(f"there is no PriorityClass {name!r:.100}")
    pod["spec"] |= {"priority": known.value, "preemptionPolicy": known.preemption_policy}


def _set_metadata(
    pod: JsonObject, spec: ProfileSpec, later: Sequence[Profile], suffixed: frozenset[str]
) -> frozenset[str]:
    """Set labels and annotations, and return the labels that have suffixes of this review."""
    own: dict[str, str] = {LABEL_QOS_CLASS: spec.qos_class} if spec.qos_class else {}
    if spec.koordinator_priority is not None:
        own[LABEL_SUB_PRIORITY] = str(spec.koordinator_priority)
    for name, given, mapping in (
        ("labels", spec.labels or {}, spec.label_keys_mapping or {}),
        ("annotations", spec.annotations or {}, spec.annotation_keys_mapping or {}),
    ):
        if not given and not mapping:
            continue
        texts = _mapping(pod, "metadata", name)
        texts |= given
        texts |= {new: texts[old] for old, new in sorted(mapping.items()) if old in texts}
    labels = (pod.get("metadata") or {}).get("labels") or {}
    copied = {new for old, new in (spec.label_keys_mapping or {}).items() if old in labels}
    suffixed -= copied | {*(spec.labels or ())}
    for key, suffix in (spec.label_suffixes or {}).items():
        # A pod may be reviewed twice: by one webhook, or by those of two installations. Its label
        # then ends with the suffixes of all profiles; else it gets each, also one like the last.
        ends = [suffix, *((other.spec.label_suffixes or {}).get(key, "") for other in later)]
        if key in labels and (key in suffixed or not labels[key].endswith("".join(ends))):
            labels[key] += suffix
            suffixed |= {key}
    if own:
        _mapping(pod, "metadata", "labels").update(own)
    return suffixed


def _check(pod: JsonObject) -> None:
    metadata = convert_object(pod, PodObject, "Pod").metadata
    check_labels(metadata.labels)
    size = _annotation_bytes(metadata.annotations)
    if size > _MOST_ANNOTATION_BYTES:
        raise InvalidPolicyError(f"the pod's annotations would have {size} bytes")


def _annotation_bytes(annotations: Mapping[str, str]) -> int:
    return sum(len(text.encode()) for pair in annotations.items() for text in pair)


def _translate(pod: JsonObject) -> None:
    spec = _mapping(pod, "spec")
    typed = convert_object({**pod, "spec": {"priority": spec.get("priority")}}, PodObject, "Pod")
    labels, priority = typed.metadata.labels, typed.spec.priority
    translate(spec, pod_class(labels, priority, None).priority_class)


def _note_resources(pod: JsonObject) -> None:
    text = extended_resource_spec(pod.get("spec") or {})
    if text is not None:
        _annotate(pod, ANNOTATION, text)


def _annotate(pod: JsonObject, key: str, text: str) -> None:
    """Set an annotation, unless the API server would then refuse the pod for the size of all."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if _annotation_bytes(annotations | {key: text}) <= _MOST_ANNOTATION_BYTES:
        _mapping(pod, "metadata", "annotations")[key] = text


def _copied(pod: JsonObject) -> JsonObject:
    """A copy in which metadata, labels, annotations and fields of the spec can be set. What lies
    deeper is shared: a pod may have thousands of containers, and many profiles."""
    copied = _with_copies(pod, "metadata", "spec")
    if copied.get("metadata") is not None:
        copied["metadata"] = _with_copies(copied["metadata"], "labels", "annotations")
    return copied


def _with_copies(tree: JsonObject, *keys: str) -> JsonObject:
    return tree | {key: dict(tree[key]) for key in keys if tree.get(key) is not None}


def _mapping(tree: JsonObject, *keys: str) -> JsonObject:
    """The mapping at this path, created where it is missing or null."""
    for key in keys:
        if tree.get(key) is None:
            tree[key] = {}
        tree = tree[key]
    return tree
