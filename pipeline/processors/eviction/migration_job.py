"""The life of a PodMigrationJob: phase, conditions and next action, from what is known of its pod.

A job is Pending until its eviction is asked for, then Running until its pod is gone. Names of
phases, conditions and reasons are those of Koordinator's migration controller. The age of a job is
the time of the evictor's clock since the API server created it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from pipeline.processors.eviction.live_pods import is_pod_name
from pipeline.processors.eviction.migration_job_object import (
    Condition,
    MigrationJobSpec,
    MigrationJobStatus,
    ObjectReference,
)
from pipeline.processors.kubernetes.durations import go_seconds

EVICT_DIRECTLY: Final = "EvictDirectly"
_MODES: Final = (EVICT_DIRECTLY, "ReservationFirst", "", None)
_UNFINISHED: Final = (None, "", "Pending", "Running")

LOOK_SECONDS: Final = 3.0
"""When a job that waits is looked at again."""
_KEPT_SECONDS: Final = 300.0
"""For how long a job remains after its TTL."""
UNLIMITED_SECONDS: Final = 1800.0
"""The longest life of a job without a TTL."""

_REASONS: Final[Mapping[str, str]] = {
    "Gone": "MissingPod", "Expired": "Timeout", "Stays": "FailedEvict",
}  # fmt: skip
"""The reason of a failed job by that of the evictor's refusal."""
_UNSCHEDULABLE: Final = Condition(
    type="ReservationScheduled", status="False", reason="Unschedulable"
)

Action = Literal["nothing", "wait", "evict"]


class Reservation(NamedTuple):
    """The room for the new pod of a job, in mode ReservationFirst.

    `phase` is that of Koordinator's Reservation; Missing if it was deleted, NotMade if nobody makes
    reservations here. `message` says why. `bound_pod` is the pod that has taken the room.
    """

    phase: Literal["NotMade", "Missing", "Pending", "Available", "Succeeded", "Failed"]
    message: str = ""
    is_unschedulable: bool = False
    is_expired: bool = False
    node: str = ""
    bound_pod: ObjectReference | None = None
    is_bound_pod_ready: bool = False


NOT_MADE: Final = Reservation(
    "NotMade", "no reservations are made here; with spec.mode EvictDirectly the pod is evicted"
)


class KnownPod(NamedTuple):
    """The pod that has the name of a job's pod."""

    uid: str
    node: str = ""
    is_deleted: bool = False


class Knowledge(NamedTuple):
    """What is known when a job is looked at.

    `at` is the time (RFC 3339), `pod` None if no pod has the name. `asked_uid` is the UID of the
    pod whose eviction was asked for. `waits_for` is why the evictor has not evicted the pod yet,
    `refusal` why it never will, `failure` the error of an eviction, each as "reason: text".
    """

    at: str
    age_seconds: float
    pod: KnownPod | None
    asked_uid: str = ""
    waits_for: str = ""
    refusal: str = ""
    failure: str = ""
    reservation: Reservation = NOT_MADE


class Step(NamedTuple):
    """What to do with a job, its new status, and when to look at it again if it waits."""

    action: Action
    status: MigrationJobStatus
    wait_seconds: float | None = None


class JobEvent(NamedTuple):
    """An Event about a job."""

    severity: Literal["Normal", "Warning"]
    reason: str
    text: str


def ttl_seconds(spec: MigrationJobSpec) -> float | None:
    """The TTL of a job; None if it has none. Raises ValueError if it is invalid."""
    seconds = go_seconds(spec.ttl) if spec.ttl else 0
    if seconds is None or seconds < 0:
        raise ValueError(f"spec.ttl is {spec.ttl!r:.80}, which is no duration such as 5m0s")
    return float(seconds) or None


def has_timed_out(ttl: float | None, age_seconds: float) -> bool:
    """Whether an unfinished job of this age fails; without a TTL (None or 0) it never does."""
    return age_seconds >= (ttl or math.inf)


def is_garbage(ttl: float | None, age_seconds: float) -> bool:
    """Whether a job is so old that it is deleted, finished or not."""
    return age_seconds >= (ttl + _KEPT_SECONDS if ttl else UNLIMITED_SECONDS)


def is_finished(status: MigrationJobStatus) -> bool:
    """Whether nothing becomes of the job any more. Unknown phases count as finished."""
    return status.phase not in _UNFINISHED


def next_step(spec: MigrationJobSpec, status: MigrationJobStatus, known: Knowledge) -> Step:
    """The next step of a job."""
    if spec.paused or is_finished(status):
        return Step("nothing", status)
    if problem := _problem(spec):
        return _fail(status, *problem)
    if has_timed_out(ttl_seconds(spec), known.age_seconds):
        waited_for = status.message if status.phase == "Pending" else ""
        why = known.waits_for or known.refusal or known.failure or waited_for
        text = f"not finished within {spec.ttl:.80}{f'; {why}' if why else ''}"
        return _fail(status, "Timeout", text)
    if spec.mode != EVICT_DIRECTLY:
        return _with_reservation(spec, status, known)
    step = _evict(spec, status, known)
    return _succeed(step.status, f"{_name(spec)} was evicted") if _is_evicted(step.status) else step


def updated_conditions(
    conditions: Sequence[Condition], condition: Condition, at: str
) -> Sequence[Condition]:
    """The conditions with this one in the place of its type, unchanged if it says nothing new. The
    transition time changes with the status only."""
    old = next((c for c in conditions if c.type == condition.type), None)
    new = msgspec.structs.replace(condition, last_probe_time=at, last_transition_time=at)
    if old is None:
        return (*conditions, new)
    if old.status == new.status:
        if (old.reason or "", old.message or "") == (new.reason or "", new.message or ""):
            return conditions
        new = msgspec.structs.replace(new, last_transition_time=old.last_transition_time)
    return tuple(new if c.type == new.type else c for c in conditions)


def events_between(before: MigrationJobStatus, after: MigrationJobStatus) -> Iterator[JobEvent]:
    """Events about the changes from one status to the next."""
    old, new = _condition(before, "Eviction"), _condition(after, "Eviction")
    if new is not None and new.reason and (old is None or old.reason != new.reason):
        severity: Literal["Normal", "Warning"]
        severity = "Warning" if new.reason == "FailedEvict" else "Normal"
        yield JobEvent(severity, new.reason, new.message or "")
    is_said = new is not None and new.reason == after.reason
    if after.phase == "Failed" != before.phase and not is_said:
        yield JobEvent("Warning", after.reason or "", after.message or "")
    elif after.phase == "Succeeded" != before.phase:
        yield JobEvent("Normal", "Complete", after.message or "")


def _problem(spec: MigrationJobSpec) -> tuple[str, str] | None:
    """Reason and text if a job is invalid, or never to be executed."""
    if not is_pod_name(spec.pod_ref.namespace or "", spec.pod_ref.name or ""):
        return "InvalidPodRef", "spec.podRef needs the namespace and the name of a pod"
    if spec.mode not in _MODES:
        return "InvalidMode", f"spec.mode is {spec.mode!r:.80}"
    try:
        ttl_seconds(spec)
    except ValueError as error:
        return "InvalidTTL", str(error)
    if spec.delete_options is not None and spec.delete_options.dry_run:
        return "ForbiddenMigratePod", "spec.deleteOptions has dryRun"
    return None


# -- eviction


def _evict(spec: MigrationJobSpec, status: MigrationJobStatus, known: Knowledge) -> Step:
    """The next step until the pod is evicted."""
    condition = _condition(status, "Eviction")
    if condition is not None and condition.status == "True":
        return Step("wait", status, 0.0)
    name, uid = _name(spec), _uid(spec) or known.asked_uid
    was_asked = bool(known.asked_uid) or status.status == "Eviction"
    if known.pod is None or (uid and known.pod.uid != uid):
        if not was_asked:
            why = "does not exist" if known.pod is None else "is another pod now"
            return _fail(status, "MissingPod", f"{name} {why}")
        done = Condition(type="Eviction", status="True", reason="EvictComplete")
        return Step("wait", _with(status, done, f"{name} was evicted", known.at), 0.0)
    leaves = was_asked and known.pod.is_deleted
    if known.failure and not leaves:
        failed = Condition(type="Eviction", status="False", reason="FailedEvict")
        return _fail(_with(status, failed, known.failure, known.at), "FailedEvict", known.failure)
    if known.refusal and not leaves:
        reason = known.refusal.partition(":")[0]
        return _fail(status, _REASONS.get(reason, "ForbiddenMigratePod"), known.refusal)
    if known.waits_for:
        return Step("evict", _waiting(status, known), LOOK_SECONDS)
    if known.asked_uid:
        asked = Condition(type="Eviction", status="False", reason="Evicting")
        status = _with(status, asked, f"the eviction of {name} is asked for", known.at)
    elif condition is None or condition.reason != "Evicting":
        return Step("evict", status)
    return Step("wait", status, LOOK_SECONDS)


def _waiting(status: MigrationJobStatus, known: Knowledge) -> MigrationJobStatus:
    """The status of a job that waits for its turn; only another reason changes it, so that a number
    in the text writes no status. After a refused call its condition says so."""
    reason = known.waits_for.partition(":")[0]
    if known.asked_uid:
        failed = Condition(type="Eviction", status="False", reason="FailedEvict")
        condition = _condition(status, "Eviction")
        if condition is None or condition.reason != "FailedEvict":
            return _with(status, failed, known.waits_for, known.at)
        return status
    # Arbitration, the start of each turn, is no news for a job that waited before.
    if status.phase == "Pending" and reason in (status.reason, "Arbitration"):
        return status
    return msgspec.structs.replace(status, phase="Pending", reason=reason, message=known.waits_for)


# -- reservation


def _with_reservation(spec: MigrationJobSpec, status: MigrationJobStatus, known: Knowledge) -> Step:
    """The next step of a job whose pod leaves only when room for the new pod is reserved."""
    reservation, at = known.reservation, known.at
    text = reservation.message
    if reservation.phase == "NotMade":
        refused = Condition(
            type="ReservationCreated", status="False", reason="FailedCreateReservation"
        )
        return _fail(_with(status, refused, text, at), "FailedCreateReservation", text)
    status = msgspec.structs.replace(status, phase="Running")
    if reservation.phase == "Missing":
        return _fail(status, "MissingReservation", text or "the reservation was deleted")
    status = _with(status, Condition(type="ReservationCreated", status="True"), "", at)
    if reservation.phase == "Pending":
        if reservation.is_unschedulable:
            status = _with(status, _UNSCHEDULABLE, text, at)
        return Step("wait", status, LOOK_SECONDS)
    if reservation.is_expired:
        return _fail(status, "ReservationExpired", text or "the reservation has expired")
    if reservation.phase == "Failed" or not reservation.node:
        return _fail(_with(status, _UNSCHEDULABLE, text, at), "Unschedulable", text)
    return _evict_into(reservation, spec, status, known)


def _evict_into(
    reservation: Reservation, spec: MigrationJobSpec, status: MigrationJobStatus, known: Knowledge
) -> Step:
    """The next step of a job once a node is reserved: evict the pod, and await the new one."""
    at, node = known.at, reservation.node
    scheduled = Condition(type="ReservationScheduled", status="True")
    status = msgspec.structs.replace(_with(status, scheduled, "", at), node_name=node)
    if known.pod is not None and known.pod.node == node:
        return _fail(status, "ForbiddenMigratePod", f"the pod itself is on the reserved {node}")
    if not _is_evicted(status):
        if reservation.phase == "Succeeded" and not known.asked_uid:
            return _fail(status, "ForbiddenMigratePod", "another pod has taken the reservation")
        step = _evict(spec, status, known)
        if not _is_evicted(step.status):
            return step
        status = step.status
    if (pod := reservation.bound_pod) is None:
        return _await(status, "PodBoundReservation", "WaitForPodBindReservation", at)
    bound = Condition(type="PodBoundReservation", status="True")
    status = msgspec.structs.replace(_with(status, bound, "", at), pod_ref=pod)
    if not reservation.is_bound_pod_ready:
        return _await(status, "BoundPodReady", "WaitForBoundPodReady", at)
    status = _with(status, Condition(type="BoundPodReady", status="True"), "", at)
    return _succeed(status, f"{pod.namespace}/{pod.name} is Ready on {node}")


def _await(status: MigrationJobStatus, kind: str, reason: str, at: str) -> Step:
    condition = Condition(type=kind, status="False", reason=reason)
    return Step("wait", _with(status, condition, "", at), LOOK_SECONDS)


# -- status


def _with(
    status: MigrationJobStatus, condition: Condition, message: str, at: str
) -> MigrationJobStatus:
    """The status of a running job whose condition changes, if it does."""
    before = status.conditions or ()
    condition = msgspec.structs.replace(condition, message=message or None)
    after = updated_conditions(before, condition, at)
    if after is before:
        return status
    return msgspec.structs.replace(
        status, phase="Running", status=condition.type, reason=condition.reason,
        message=condition.message, conditions=tuple(after),
    )  # fmt: skip


def _fail(status: MigrationJobStatus, reason: str, text: str) -> Step:
    failed = msgspec.structs.replace(status, phase="Failed", reason=reason, message=text or None)
    return Step("nothing", failed)


def _succeed(status: MigrationJobStatus, text: str) -> Step:
    done = msgspec.structs.replace(
        status, phase="Succeeded", status="Complete", reason=None, message=text
    )
    return Step("nothing", done)


def _condition(status: MigrationJobStatus, kind: str) -> Condition | None:
    return next((c for c in status.conditions or () if c.type == kind), None)


def _is_evicted(status: MigrationJobStatus) -> bool:
    condition = _condition(status, "Eviction")
    return condition is not None and condition.status == "True"


def _uid(spec: MigrationJobSpec) -> str | None:
    """The UID of the only pod that the job may evict, if it names one."""
    preconditions = spec.delete_options and spec.delete_options.preconditions
    return spec.pod_ref.uid or (preconditions.uid if preconditions else None)


def _name(spec: MigrationJobSpec) -> str:
    return f"{spec.pod_ref.namespace}/{spec.pod_ref.name}"
