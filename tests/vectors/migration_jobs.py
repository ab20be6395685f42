"""The group of migration jobs: the life of a PodMigrationJob, one look at a time."""

from typing import Any, Final

from pipeline.processors.eviction.migration_job import (
    Knowledge,
    KnownPod,
    Reservation,
    has_timed_out,
    is_garbage,
    next_step,
    updated_conditions,
)
from pipeline.processors.eviction.migration_job_object import (
    Condition,
    MigrationJobSpec,
    MigrationJobStatus,
    ObjectReference,
)
from tests.vectors.cases import Case, plain
from tests.vectors.runner import Difference, group

MISSING = (
    "a job whose reservation was deleted fails at once",
    "the user sees MissingReservation instead of a job that runs until its TTL",
)
AT: Final = "2026-01-02T03:04:05Z"
LATER: Final = "2026-01-02T03:04:06Z"
RESERVATIONS: Final = {
    "missing": Reservation("Missing"),
    "pending": Reservation("Pending"),
    "unschedulable": Reservation("Failed", is_unschedulable=True),
    "expired": Reservation("Failed", is_expired=True),
    "failed": Reservation("Failed"),
    "available": Reservation("Available", node="another"),
    "same_node": Reservation("Available", node="own"),
    "succeeded": Reservation("Succeeded", node="another"),
}


def _spec(mode: str, uid: str = "") -> MigrationJobSpec:
    pod = ObjectReference(namespace="d", name="a", uid=uid or None)
    return MigrationJobSpec(pod_ref=pod, mode=mode)


def _evict_step(case: Case) -> object:
    reason, evicted = case.get("eviction_reason"), case.get("eviction_condition")
    conditions = (Condition(type="Eviction", status=evicted, reason=reason),) if evicted else ()
    status = MigrationJobStatus(
        phase="Running", status=case.get("status"), conditions=conditions
    )  # fmt: skip
    spec = _spec("EvictDirectly", case.get("job_pod_uid") or "")
    uid = case.get("live_pod_uid") or case.get("job_pod_uid") or "1"
    pod = KnownPod(uid) if case.get("pod_exists", True) else None
    step = next_step(spec, status, Knowledge(AT, 0.0, pod))
    call = case.get("evict_call", "ok")
    if step.action == "evict" and call != "ok":
        # An error leaves the job as it is; it is tried again.
        return {"evicted": False, "error": True}
    if step.action == "evict":
        step = next_step(spec, step.status, Knowledge(AT, 0.0, pod, asked_uid=uid))
    after = next((c for c in step.status.conditions or () if c.type == "Eviction"), None)
    is_evicted = after is not None and after.status == "True"
    answer: dict[str, Any] = {"evicted": is_evicted, "requeue_after_s": step.wait_seconds}
    if step.status.phase == "Failed":
        return answer | {"phase": "Failed", "reason": step.status.reason}
    if after is not None and (after.status, after.reason) != (evicted, reason):
        answer |= {"condition": after.status, "reason": after.reason}
    return answer


def _reservation_outcome(case: Case) -> object:
    reservation, phase = RESERVATIONS[case["reservation"]], case.get("reservation_phase")
    if phase is not None:
        reservation = reservation._replace(phase=phase)
    spec, pod = _spec("ReservationFirst"), KnownPod("1", "own")
    known = Knowledge(AT, 0.0, pod, reservation=reservation)
    step = next_step(spec, MigrationJobStatus(phase="Running"), known)
    if step.action == "evict":
        step = next_step(spec, step.status, known._replace(asked_uid="1"))
    is_failed = step.status.phase == "Failed"
    return {
        "phase": step.status.phase,
        "reason": step.status.reason if is_failed else None,
        "requeue_after_s": step.wait_seconds,
    }


def _condition(case: Case) -> object:
    def read(tree: Case) -> Condition:
        return Condition(
            type=tree["type"], status=tree["status"], reason=tree.get("reason"),
            message=tree.get("message"), last_transition_time=AT,
        )  # fmt: skip

    have = tuple(read(condition) for condition in case["have"])
    return {"changed": updated_conditions(have, read(case["set"]), LATER) != have}


def _without_reservation(given: Case, expected: Case) -> Difference | None:
    if given.get("reservation") != "missing" or not expected.get("error"):
        return None
    return Difference(*MISSING, {"phase": "Failed", "reason": "MissingReservation"})


def _as_asked(wanted: Any, answer: Any) -> Any:
    """Cases name the condition of an evicted pod only where they look at it."""
    if not isinstance(answer, dict) or not answer.get("evicted"):
        return answer
    return {key: value for key, value in answer.items() if key in wanted}


@group(
    "next_step, updated_conditions, has_timed_out, is_garbage",
    differs=_without_reservation,
    resolve=_as_asked,
)
def migration_job(case: Case) -> object:
    """One look at a PodMigrationJob."""
    match case["kind"]:
        case "timeout":
            is_over = has_timed_out(case["ttl_s"], case["age_s"])
            return {"action": "fail_timeout" if is_over else "keep"}
        case "garbage_collect":
            return {"delete": is_garbage(case["ttl_s"], case["age_s"])}
        case "evict_step":
            return _evict_step(case)
        case "reservation_outcome":
            return _reservation_outcome(case)
        case _:
            return _condition(plain(case))
