"""Answer AdmissionReviews: what the processors decide, in the mode of the settings."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.errors import BadRequestError, InvalidPolicyError, InvalidRecordError
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.admission.admission_review import (
    ReviewRequest,
    answer,
    read_object,
)
from pipeline.processors.admission.colocation_profile import GROUP, NAME, read_profile
from pipeline.processors.admission.json_patch import json_patch
from pipeline.processors.admission.pod_rules import creation_problems, update_problems
from pipeline.processors.admission.profile_application import (
    Request,
    Result,
    apply_profiles,
)
from pipeline.settings import WebhookSettings
from pipeline.settings.feature_gates import Gate, gates_in_force
from pipeline.webhook.cluster_objects import ClusterObjects

APPLICATIONS: Final = counter(
    "webhook_profile_applications",
    "Profiles that matched a new pod: applied, or not applied for a reason that the log has.",
    ["result"],
)

GATES: Final[Mapping[str, Gate]] = {
    "PodMutatingWebhook": Gate(True, "apply profiles to new pods"),
    "PodValidatingWebhook": Gate(True, "refuse pods and changes of pods"),
    "ColocationProfileSkipMutatingResources": Gate(
        False, "leave cpu and memory of all pods as they are"
    ),
    "ColocationProfileSkipValidatingPriority": Gate(
        False, "allow changes of the label `koordinator.sh/priority`"
    ),
    "DisableExtendedResourceSpec": Gate(
        False, "do not write the annotation `node.koordinator.sh/extended-resource-spec`"
    ),
}
"""The feature gates; names and defaults are Koordinator's."""

_MOST_LOGGED: Final = 1000
_MOST_WARNING: Final = 250
"""Kubernetes cuts longer warnings."""

log = get_logger(__name__)


class Answer(NamedTuple):
    """The body of an answer, and in one word what it says, for metrics."""

    body: bytes
    result: str


class Reviews:
    """Answers reviews by what `objects` has."""

    def __init__(self, objects: ClusterObjects, settings: WebhookSettings) -> None:
        """Raises `SettingsError` for an unknown feature gate."""
        self._objects = objects
        self._acts = settings.mode == "act"
        self._gates = gates_in_force(settings.feature_gates, GATES, "webhook.feature_gates")

    async def mutate_pod(self, request: ReviewRequest) -> Answer:
        """Apply profiles to a new pod. Raises `BadRequestError` if the review has no object."""
        if not _is_pod(request) or request.operation != "CREATE":
            return _unconcerned(request)
        if not self._gates["PodMutatingWebhook"]:
            return _allowed(request)
        pod = read_object(request.object)
        cluster = await self._objects.cluster(_namespace(request))
        try:
            result = apply_profiles(
                pod,
                Request(request.uid, _namespace(request)),
                self._objects.profiles,
                cluster,
                translates=not self._gates["ColocationProfileSkipMutatingResources"],
                writes_spec_annotation=not self._gates["DisableExtendedResourceSpec"],
            )
        except InvalidRecordError as error:
            return _unreadable(request, error)
        self._report(result, writes_events=not request.dry_run)
        return self._changed(request, pod, result)

    def _report(self, result: Result, *, writes_events: bool) -> None:
        APPLICATIONS.labels("applied").inc(len(result.applied))
        APPLICATIONS.labels("not_applied").inc(len(result.not_applied))
        if writes_events:
            for name, reason in result.not_applied.items():
                self._objects.report_by_name(name, reason)

    def _changed(self, request: ReviewRequest, pod: Any, result: Result) -> Answer:
        patch = json_patch(pod, result.pod)
        if not patch:
            return _allowed(request)
        names = ",".join(result.applied)
        audit = {"profiles": names} if names else {}
        if self._acts:
            return Answer(answer(request.uid, patch=patch, audit=audit), "changed")
        text = msgspec.json.encode(patch).decode()
        log.info(
            "pod would be changed", per=names, profiles=names, namespace=_namespace(request),
            patch=text[:_MOST_LOGGED],
        )  # fmt: skip
        audit["would-change"] = text
        return Answer(answer(request.uid, audit=audit), "would_change")

    async def validate_pod(self, request: ReviewRequest) -> Answer:
        """Refuse pairs of QoS and priority that are forbidden, and changes of them."""
        if not _is_pod(request) or request.operation not in ("CREATE", "UPDATE"):
            return _unconcerned(request)
        if not self._gates["PodValidatingWebhook"]:
            return _allowed(request)
        pod = read_object(request.object)
        try:
            if request.operation == "CREATE":
                problems = creation_problems(pod)
            else:
                problems = update_problems(
                    read_object(request.old_object),
                    pod,
                    checks_sub_priority=not self._gates["ColocationProfileSkipValidatingPriority"],
                )
        except InvalidRecordError as error:
            return _unreadable(request, error)
        return self._judged(request, problems)

    async def validate_profile(self, request: ReviewRequest) -> Answer:
        """Refuse an invalid profile, before any pod matches it."""
        is_profile = (request.kind.group, request.kind.kind) == (GROUP, NAME)
        if not is_profile or request.operation not in ("CREATE", "UPDATE"):
            return _unconcerned(request)
        try:
            read_profile(request.object)
        except InvalidPolicyError as error:
            return self._judged(request, [error.message])
        return _allowed(request)

    def _judged(self, request: ReviewRequest, problems: list[str]) -> Answer:
        if not problems:
            return _allowed(request)
        reason = "; ".join(problems)
        kind, name = request.kind.kind, request.name or ""
        if self._acts:
            log.info("refused", per=reason, kind=kind, name=name, why=reason)
            return Answer(answer(request.uid, refused=reason), "refused")
        log.info("would be refused", per=reason, kind=kind, name=name, why=reason)
        warnings = [f"springtide would refuse this {kind}: {reason}"[:_MOST_WARNING]]
        body = answer(request.uid, warnings=warnings, audit={"would-refuse": reason})
        return Answer(body, "would_refuse")


def _namespace(request: ReviewRequest) -> str:
    return request.namespace or "default"


def _is_pod(request: ReviewRequest) -> bool:
    kind = request.kind
    return (kind.group, kind.kind, request.sub_resource or "") == ("", "Pod", "")


def _allowed(request: ReviewRequest) -> Answer:
    return Answer(answer(request.uid), "allowed")


def _unconcerned(request: ReviewRequest) -> Answer:
    """Admit what the webhook has no rule for: a configuration has sent it here."""
    kind = request.kind.kind
    log.warning(
        "review of another kind or operation admitted", per="unconcerned", kind=kind[:100],
        operation=request.operation[:100],
    )  # fmt: skip
    return Answer(answer(request.uid), "unconcerned")


def _unreadable(request: ReviewRequest, error: InvalidRecordError | BadRequestError) -> Answer:
    """Admit a pod that cannot be read: the API server itself refuses what is no pod."""
    log.warning("pod not read, admitted unchanged", per="unreadable", why=error.message[:500])
    return Answer(answer(request.uid), "unreadable")
