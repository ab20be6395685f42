"""The life of a PodMigrationJob: each state has one next step, and every life ends."""

import json
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.eviction.migration_job import (
    EVICT_DIRECTLY,
    LOOK_SECONDS,
    Knowledge,
    KnownPod,
    Reservation,
    events_between,
    has_timed_out,
    is_finished,
    is_garbage,
    next_step,
    ttl_seconds,
    updated_conditions,
)
from pipeline.processors.eviction.migration_job_object import (
    DEFINITION,
    Condition,
    DeleteOptions,
    MigrationJobSpec,
    MigrationJobStatus,
    ObjectReference,
    PodMigrationJob,
    Preconditions,
)
from pipeline.processors.slo.crd_schema import definition
from tests.crds import path_of, text_of

AT, LATER = "2026-01-02T03:04:05Z", "2026-01-02T03:04:08Z"
POD = KnownPod("1", "n")
NEW = MigrationJobStatus()


def job(**changes: Any) -> MigrationJobSpec:
    values: dict[str, Any] = {"mode": EVICT_DIRECTLY, "ttl": "5m", "uid": "1"} | changes
    pod = ObjectReference(namespace="d", name="a", uid=values.pop("uid"))
    return MigrationJobSpec(**{"pod_ref": pod} | values)


def known(pod: KnownPod | None = POD, age: float = 1.0, **values: Any) -> Knowledge:
    return Knowledge(values.pop("at", AT), age, pod, **values)


def life(spec: MigrationJobSpec, *looks: Knowledge) -> list[str]:
    """Phase, status and reason after each look."""
    status, seen = NEW, []
    for knowledge in looks:
        status = next_step(spec, status, knowledge).status
        seen.append(f"{status.phase} {status.status} {status.reason}")
    return seen


def test_a_job_waits_is_executed_and_succeeds_when_the_pod_is_gone() -> None:
    deleted = KnownPod("1", "n", is_deleted=True)
    assert life(
        job(),
        known(waits_for="MaxMigratingPerNode: 2 pods are leaving"),
        known(asked_uid="1"),
        known(deleted, asked_uid="1"),
        known(None, asked_uid="1"),
    ) == [
        "Pending None MaxMigratingPerNode",
        "Running Eviction Evicting",
        "Running Eviction Evicting",
        "Succeeded Complete None",
    ]


def test_a_pod_of_the_same_name_is_a_successor_and_not_evicted() -> None:
    successor = KnownPod("2", "n")
    assert next_step(job(), NEW, known(successor)).status.reason == "MissingPod"
    assert next_step(job(), NEW, known(successor, asked_uid="1")).status.phase == "Succeeded"
    # Without a UID in the job, that of the call counts, also after a restart.
    assert next_step(job(uid=None), NEW, known(successor)).action == "evict"
    step = next_step(job(uid=None), NEW, known(successor, asked_uid="1"))
    assert step.status.phase == "Succeeded"
    options = DeleteOptions(preconditions=Preconditions(uid="1"))
    step = next_step(job(uid=None, delete_options=options), NEW, known(successor))
    assert step.status.reason == "MissingPod"


def test_an_eviction_that_was_asked_for_is_not_asked_for_again() -> None:
    asked = next_step(job(), NEW, known(asked_uid="1")).status
    # A new leader may know of it by the status only.
    for knowledge in (known(), known(asked_uid="1")):
        step = next_step(job(), asked, knowledge)
        assert (step.action, step.wait_seconds, step.status) == ("wait", LOOK_SECONDS, asked)
    assert next_step(job(), asked, known(None)).status.phase == "Succeeded"
    assert next_step(job(), asked, known(age=300.0)).status.reason == "Timeout"


def test_a_refused_call_is_a_warning_and_the_job_waits_for_another() -> None:
    asked = next_step(job(), NEW, known(asked_uid="1")).status
    text = "a disruption budget forbids the eviction"
    step = next_step(job(), asked, known(asked_uid="1", waits_for=text))
    assert (step.action, step.status.phase, step.status.reason) == (
        "evict", "Running", "FailedEvict",
    )  # fmt: skip
    assert [*events_between(asked, step.status)] == [("Warning", "FailedEvict", text)]
    # Another leader asks again.
    assert next_step(job(), step.status, known()).action == "evict"


@pytest.mark.parametrize(
    ("spec", "knowledge", "reason"),
    [
        (job(), known(None), "MissingPod"),
        (job(), known(age=300.0), "Timeout"),
        (job(), known(refusal="BarePod: no controller"), "ForbiddenMigratePod"),
        (job(), known(refusal="Gone: the pod was deleted"), "MissingPod"),
        (job(), known(refusal="Stays: no agent evicted the pod"), "FailedEvict"),
        (job(), known(refusal="Expired: the plan is no longer valid"), "Timeout"),
        (job(), known(failure="500 two budgets", asked_uid="1"), "FailedEvict"),
        (job(ttl="soon"), known(), "InvalidTTL"),
        (job(ttl="-5m"), known(), "InvalidTTL"),
        (job(mode="Evict"), known(), "InvalidMode"),
        (job(pod_ref=ObjectReference(name="a")), known(), "InvalidPodRef"),
        (job(pod_ref=ObjectReference(namespace="d", name="")), known(), "InvalidPodRef"),
        (job(delete_options=DeleteOptions(dry_run=("All",))), known(), "ForbiddenMigratePod"),
        (job(mode="ReservationFirst"), known(), "FailedCreateReservation"),
        (job(mode=None), known(), "FailedCreateReservation"),
    ],
)
def test_a_job_that_cannot_be_executed_fails_with_a_reason_and_never_evicts(
    spec: MigrationJobSpec, knowledge: Knowledge, reason: str
) -> None:
    step = next_step(spec, NEW, knowledge)
    assert (step.action, step.status.phase, step.status.reason) == ("nothing", "Failed", reason)
    assert step.status.message
    (event,) = events_between(NEW, step.status)
    assert event == ("Warning", reason, step.status.message)


def test_a_failed_call_after_which_the_pod_is_deleted_has_worked() -> None:
    deleted = KnownPod("1", "n", is_deleted=True)
    step = next_step(job(), NEW, known(deleted, asked_uid="1", failure="no answer"))
    assert step.status.reason == "Evicting"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Aborted", "PhaseOfTomorrow"])
def test_finished_and_paused_jobs_are_left_alone(phase: str) -> None:
    status = MigrationJobStatus(phase=phase)
    assert next_step(job(), status, known(age=1e9)) == ("nothing", status, None)
    assert next_step(job(paused=True), NEW, known(age=1e9)) == ("nothing", NEW, None)


def test_another_number_in_the_text_of_a_wait_changes_no_status() -> None:
    first = next_step(job(), NEW, known(waits_for="CycleCap: 3 pods")).status
    assert next_step(job(), first, known(waits_for="CycleCap: 4 pods")).status is first
    other = next_step(job(), first, known(waits_for="ObjectLimiter: 1 pod")).status
    assert other.reason == "ObjectLimiter"


def test_a_timeout_says_what_the_job_waited_for() -> None:
    step = next_step(job(), NEW, known(age=300.0, waits_for="CycleCap: 3 pods were evicted"))
    assert "CycleCap: 3 pods were evicted" in (step.status.message or "")


@pytest.mark.parametrize(
    ("ttl", "seconds"), [(None, None), ("", None), ("0s", None), ("5m0s", 300.0), ("1h", 3600.0)]
)
def test_a_ttl_is_a_duration_of_go_and_0_is_none(ttl: str | None, seconds: float | None) -> None:
    assert ttl_seconds(job(ttl=ttl)) == seconds


@given(st.one_of(st.none(), st.integers(0, 10**6)), st.integers(0, 10**7))
def test_a_job_fails_before_it_is_deleted(ttl: int | None, age: int) -> None:
    assert not (ttl and is_garbage(ttl, age)) or has_timed_out(ttl, age)
    assert not (has_timed_out(ttl, age) and not ttl)


# -- reservations


def reserved(*reservations: Reservation, pods: tuple[KnownPod | None, ...] = (POD,)) -> list[str]:
    looks = []
    for number, reservation in enumerate(reservations):
        pod = pods[min(number, len(pods) - 1)]
        asked = "1" if pod is None else ""
        looks.append(known(pod, asked_uid=asked, reservation=reservation))
    return life(job(mode="ReservationFirst"), *looks)


def test_the_interface_of_reservations_moves_a_pod_into_reserved_room() -> None:
    taken = Reservation("Succeeded", node="m", bound_pod=ObjectReference(namespace="d", name="b"))
    assert reserved(
        Reservation("Pending"),
        Reservation("Pending", is_unschedulable=True, message="no node"),
        Reservation("Available", node="m"),
        Reservation("Available", node="m"),
        taken,
        taken._replace(is_bound_pod_ready=True),
        pods=(POD, POD, POD, None),
    ) == [
        "Running ReservationCreated None",
        "Running ReservationScheduled Unschedulable",
        "Running ReservationScheduled None",
        "Running PodBoundReservation WaitForPodBindReservation",
        "Running BoundPodReady WaitForBoundPodReady",
        "Succeeded Complete None",
    ]


@pytest.mark.parametrize(
    ("reservation", "reason"),
    [
        (Reservation("Missing"), "MissingReservation"),
        (Reservation("Failed", is_expired=True), "ReservationExpired"),
        (Reservation("Failed", message="no node"), "Unschedulable"),
        (Reservation("Available"), "Unschedulable"),
        (Reservation("Available", node="n"), "ForbiddenMigratePod"),
        (Reservation("Succeeded", node="m"), "ForbiddenMigratePod"),
    ],
)
def test_a_job_without_room_fails_and_its_pod_stays(reservation: Reservation, reason: str) -> None:
    knowledge = known(reservation=reservation)
    step = next_step(job(mode="ReservationFirst"), NEW, knowledge)
    assert (step.action, step.status.phase, step.status.reason) == ("nothing", "Failed", reason)


# -- conditions and events


def test_the_transition_time_changes_with_the_status_only() -> None:
    first = updated_conditions((), Condition(type="Eviction", status="False", reason="a"), AT)
    same = Condition(type="Eviction", status="False", reason="a")
    assert updated_conditions(first, same, LATER) is first
    (second,) = updated_conditions(first, Condition(type="Eviction", status="False"), LATER)
    assert (second.last_transition_time, second.last_probe_time) == (AT, LATER)
    (third,) = updated_conditions((second,), Condition(type="Eviction", status="True"), LATER)
    assert third.last_transition_time == LATER


def test_the_events_of_a_life_have_upstreams_reasons() -> None:
    status, reasons = NEW, []
    for knowledge in (known(), known(asked_uid="1"), known(asked_uid="1"), known(None)):
        after = next_step(job(), status, knowledge).status
        reasons += [event.reason for event in events_between(status, after)]
        status = after
    assert reasons == ["Evicting", "EvictComplete", "Complete"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, POD, KnownPod("2"), KnownPod("1", "n", True)]),
            st.sampled_from(["", "1"]),
            st.sampled_from(["", "CycleCap: x", "BarePod: x", "500"]),
            st.integers(0, 2),
        ),
        max_size=8,
    ),
    st.sampled_from([EVICT_DIRECTLY, "ReservationFirst", "other"]),
)
def test_no_life_evicts_twice_or_comes_back_from_its_end(
    looks: list[tuple[KnownPod | None, str, str, int]], mode: str
) -> None:
    spec, status = job(mode=mode), NEW
    for pod, asked, text, place in looks:
        texts: dict[str, Any] = {("waits_for", "refusal", "failure")[place]: text}
        before = status
        step = next_step(spec, before, known(pod, asked_uid=asked, **texts))
        status = step.status
        if is_finished(before):
            assert step == ("nothing", before, None)
        if step.action == "evict":
            assert mode == EVICT_DIRECTLY
            assert pod is not None
            assert pod.uid == "1"
            assert not asked or texts.get("waits_for")
    end = next_step(spec, status, known(age=300.0)).status
    assert is_finished(end)


# -- the definition


def test_the_definition_on_disk_equals_the_struct() -> None:
    text = path_of(DEFINITION).read_text()
    assert text == text_of(DEFINITION), "python -m tests.crds writes it anew"
    names = yaml.safe_load(text)["spec"]["names"]
    assert (names["kind"], names["plural"], names["shortNames"]) == (
        "PodMigrationJob", "podmigrationjobs", ["pmj"],
    )  # fmt: skip
    assert definition(DEFINITION)["spec"]["scope"] == "Cluster"


def test_an_object_of_koordinator_is_read_and_written_unchanged() -> None:
    document = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "PodMigrationJob",
        "metadata": {"name": "migrate"},
        "spec": {
            "paused": False, "ttl": "5m0s", "mode": "ReservationFirst",
            "podRef": {"namespace": "default", "name": "a", "uid": "1"},
            "reservationOptions": {"template": {"spec": {"ttl": "5m0s"}}, "preemptionOptions": {}},
            "deleteOptions": {"gracePeriodSeconds": 60, "propagationPolicy": "Background"},
        },
        "status": {
            "phase": "Running", "status": "ReservationScheduled", "nodeName": "n",
            "podRef": {"namespace": "default", "name": "b"},
            "conditions": [
                {"type": "ReservationCreated", "status": "True",
                 "lastTransitionTime": "2026-01-02T03:04:05Z"},
            ],
        },
    }  # fmt: skip
    read = msgspec.convert(document, PodMigrationJob)
    assert json.loads(msgspec.json.encode(read)) == document
