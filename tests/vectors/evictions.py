"""The groups of evictions: who may be evicted, limits, arbitration, and answers of the API."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from pipeline.processors.descheduling.node_fit import NodeRoom, room_objection
from pipeline.processors.eviction.arbitration import (
    Request,
    arbitration_order,
    by_batch_job,
    by_creation,
    by_moving_siblings,
    by_pod_rank,
    judge,
    pod_rank,
)
from pipeline.processors.eviction.disruption_budgets import DisruptionBudget, expected_answer
from pipeline.processors.eviction.evictability import EVICT, EVICTION_COST, protections_of
from pipeline.processors.eviction.eviction_answers import action_for, meaning_of, next_step
from pipeline.processors.eviction.eviction_history import EvictionHistory
from pipeline.processors.eviction.live_pods import LivePod
from pipeline.processors.eviction.migration_limits import (
    Candidate,
    WorkloadState,
    is_exhausted,
    limits_reached,
    replica_guard,
    workload_limit,
)
from pipeline.processors.eviction.migration_policy import (
    MigrationLimits,
    ObjectLimiter,
    Protections,
)
from pipeline.processors.eviction.refusals import Refusal, verdict
from pipeline.processors.kubernetes.pod_classes import pod_class
from pipeline.processors.policy.selectors import Selector
from pipeline.times import format_time
from pipeline.topics.nodes import Taint
from pipeline.topics.pods import Owner, PodRecord
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.workloads import Workload
from tests.vectors.cases import Case, plain
from tests.vectors.runner import Difference, group

PODS_COUNT = (
    "global limits count pods on the move, not requests to move them",
    "a pod that two plans name takes one place of maxMigratingGlobally",
)
ITSELF = (
    "a pod that is not Ready does not count against its own eviction",
    "the unavailable pod of a workload can be moved off a hot node",
)
CRITICAL = (
    "priorityThreshold holds also with evictSystemCriticalPods",
    "pods above the threshold stay although critical ones may be evicted",
)
ANNOTATED = (
    "the annotation lifts the protections of a pod that exists and is not being deleted",
    "a pod that is being deleted is not evicted again",
)
OWN_WORDS = (
    "the action is the same, its explanation in other words",
    "the text of a failed action",
)
OFF: Final = ObjectLimiter(duration_seconds=0.0)
OPEN: Final[dict[str, Any]] = {
    "max_migrating_per_node": None, "max_migrating_per_workload": "100%",
    "max_unavailable_per_workload": "100%", "workload_limiter": OFF,
}  # fmt: skip
MANY: Final = 10**6


# -- who may be evicted


def _owner(kinds: Sequence[str]) -> Owner | None:
    return Owner(kind=kinds[0], name="o") if kinds else None


def _filter(case: Case) -> object:
    pod, options = case["pod"], case["options"]
    annotations = dict(pod.get("annotations") or {})
    if pod.get("mirror"):
        annotations["kubernetes.io/config.mirror"] = "hash"
    if pod.get("static"):
        annotations["kubernetes.io/config.source"] = "file"
    if pod.get("evict_annotation"):
        annotations[EVICT] = "true"
    if pod.get("eviction_cost") is not None:
        annotations[EVICTION_COST] = str(pod["eviction_cost"])
    volumes: tuple[str, ...] = ("emptyDir",) if pod.get("local_storage") else ()
    volumes += ("persistentVolumeClaim",) if pod.get("pvc") else ()
    record = PodRecord(
        node=pod["node"], uid=pod["name"], cgroup_uid="", name=pod["name"],
        namespace=pod.get("namespace") or "default", owner=_owner(pod.get("owner_kinds") or ()),
        labels=plain(pod.get("labels") or {}), annotations=annotations, volumes=volumes,
        priority=pod.get("priority"), phase=pod.get("phase") or "Running",
        deleted_at=format_time(0.0) if pod.get("terminating") else None,
        requests=_resources(pod), node_selector=plain(pod.get("node_selector") or {}),
    )  # fmt: skip
    names = {name: name for name in Protections.__struct_fields__}
    names |= {"namespaces_included": "include_namespaces"}
    names |= {"namespaces_excluded": "exclude_namespaces"}
    values = {field: options[name] for field, name in names.items() if name in options}
    for field in ("namespaces_included", "namespaces_excluded", "scheduler_names"):
        if field in values:
            values[field] = frozenset(values[field])
    if "label_selector" in values:
        values["label_selector"] = Selector(match_labels=plain(values["label_selector"]))
    refusals = [*protections_of(record, Protections(**values))]
    if options.get("node_fit") and not _fits_elsewhere(case, record):
        refusals.append(Refusal("NodeFit", "", "NodeFit"))
    return {"evictable": verdict(refusals, options.get("skip_gates") or ()).refusal is None}


def _resources(case: Case) -> Resources:
    requests = plain(case.get("requests") or {})
    return Resources(cpu_millicores=requests.get("cpu"), memory_bytes=requests.get("memory"))


def _fits_elsewhere(case: Case, record: PodRecord) -> bool:
    others = [
        PodRecord(
            node=pod["node"], uid=pod["name"], cgroup_uid="", name=pod["name"], namespace="d",
            requests=_resources(pod),
        )
        for pod in case.get("other_pods") or ()
    ]  # fmt: skip
    nodes = [
        NodeRoom(
            name=node["name"], labels=plain(node.get("labels") or {}),
            taints=tuple(Taint(**plain(taint)) for taint in node.get("taints") or ()),
            is_cordoned=bool(node.get("unschedulable")), allocatable=plain(node["allocatable"]),
        )
        for node in case["nodes"]
    ]  # fmt: skip
    return any(
        room_objection(record, node, [pod for pod in others if pod.node == node.name]) is None
        for node in nodes
        if node.name != record.node
    )


def _max_cost(case: Case) -> object:
    annotations = {EVICTION_COST: str(case["eviction_cost"])}
    record = PodRecord(
        node="n", uid="a", cgroup_uid="a", namespace="d", name="a", annotations=annotations,
        owner=Owner(kind="ReplicaSet", name="o"),
    )  # fmt: skip
    return {"allowed": not [*protections_of(record, Protections())]}


def _protected_differently(given: Case, expected: Case) -> Difference | None:
    pod, options = given.get("pod") or {}, given.get("options") or {}
    threshold, priority = options.get("priority_threshold"), pod.get("priority")
    is_above = priority is not None and threshold is not None and priority >= threshold
    if options.get("evict_system_critical_pods") and is_above and expected["evictable"]:
        return Difference(*CRITICAL, {"evictable": False})
    if pod.get("evict_annotation") and pod.get("terminating") and expected["evictable"]:
        return Difference(*ANNOTATED, {"evictable": False})
    return None


@group("protections_of, room_objection, verdict", differs=_protected_differently)
def evictability(case: Case) -> object:
    """Whether a pod may be evicted at all."""
    return _run(case, {"filter": _filter, "max_cost": _max_cost})


# -- limits


def _candidate(case: Case) -> Candidate:
    name = case["workload"]
    return Candidate(
        uid=case["pod"], node=case["node"], namespace=case["namespace"],
        workload=Workload("", "Deployment", name) if name else None,
    )  # fmt: skip


def _situated(case: Case, state: WorkloadState, limits: MigrationLimits, gates: Any) -> object:
    """Whether limits allow to evict the candidate beside jobs, which are noted in their order."""
    history = EvictionHistory(3600.0, 300.0)
    is_arbitrated = case.get("candidate_is_being_arbitrated", False)
    for job in case["jobs"]:
        pod, phase, has_passed = (
            _candidate(job),
            job["phase"] or "Pending",
            job["passed_arbitration"],
        )
        # While the candidate is arbitrated, jobs that wait themselves do not count.
        if phase == "Running" or (phase == "Pending" and (has_passed or not is_arbitrated)):
            history.note(pod, 0.0)
    candidate = _candidate(case["candidate"])
    situation = history.situation(candidate, 0.0, state)
    refusal = verdict(limits_reached(candidate, situation, limits), gates).refusal
    return {"allowed": refusal is None}


def _at_once(case: Case) -> object:
    field = {
        "global": "max_migrating_globally", "node": "max_migrating_per_node",
        "namespace": "max_migrating_per_namespace",
    }[case["scope"]]  # fmt: skip
    limits = MigrationLimits(**(OPEN | {field: case["limit"]}))
    gates = case.get("skip_gates") or ()
    return _situated(case, WorkloadState(replicas=MANY), limits, gates)


def _of_workload(case: Case) -> object:
    state = WorkloadState(
        replicas=case["replicas"], unavailable=frozenset(case.get("unavailable_pods") or ())
    )
    if case["candidate"]["workload"] not in {job["workload"] for job in case["jobs"]}:
        plain(case["jobs"])
    values = {
        "max_migrating_per_workload": case["max_migrating"],
        "max_unavailable_per_workload": case["max_unavailable"],
    }
    limits = MigrationLimits(**(OPEN | values))
    return _situated(case, state, limits, case.get("skip_gates") or ())


def _replicas(case: Case) -> object:
    limits = MigrationLimits(
        max_migrating_per_workload=case.get("max_migrating"),
        max_unavailable_per_workload=case.get("max_unavailable"),
        skip_check_expected_replicas=case.get("skip_check", False),
    )
    refusals = replica_guard(WorkloadState(replicas=case["replicas"]), limits)
    return {"allowed": verdict(refusals, case.get("skip_gates") or ()).refusal is None}


def _limiter(case: Case | None) -> ObjectLimiter:
    if case is None:
        return OFF
    return ObjectLimiter(
        duration_seconds=case["window_seconds"], max_migrating=case.get("max_migrating"),
        burst=case.get("burst") or 1,
    )  # fmt: skip


def _object_limiter(case: Case) -> object:
    limiters, history = case["limiters"], EvictionHistory(3600.0, 300.0)
    values = {
        "workload_limiter": _limiter(limiters.get("workload")),
        "namespace_limiter": _limiter(limiters.get("namespace")),
        "max_migrating_per_workload": case.get("max_migrating_per_workload"),
    }
    for number, eviction in enumerate(case["evicted"]):
        pod = Candidate(
            f"{number}", "", eviction["namespace"],
            workload=Workload("", "Deployment", eviction["workload"]),
        )  # fmt: skip
        history.note(pod, eviction["at_s"])
        history.left(pod.uid)
    given = case["candidate"]
    workload = Workload("", "Deployment", given["workload"])
    candidate = Candidate("x", "", given["namespace"], workload=workload)
    state = WorkloadState(replicas=case["replicas"])
    situation = history.situation(candidate, case["check_at_s"], state)
    reached = limits_reached(candidate, situation, MigrationLimits(**(OPEN | values)))
    return {"held_back": any(refusal.reason == "ObjectLimiter" for refusal in reached)}


def _cycle_limiter(case: Case) -> object:
    names = {"per_node": "cycle_per_node", "per_namespace": "cycle_per_namespace"}
    names |= {"total": "cycle_total"}
    caps = {names[key]: cap for key, cap in case["limits"].items()}
    limits, history = MigrationLimits(**(OPEN | caps)), EvictionHistory(3600.0, 300.0)
    allowed, evicted = [], []
    for number, request in enumerate(case["requests"]):
        pod = Candidate(f"{number}", request["node"], request["namespace"])
        is_allowed = not [*limits_reached(pod, history.situation(pod, 0.0), limits)]
        allowed.append(is_allowed)
        if is_allowed:
            history.note(pod, 0.0)
            evicted.append(pod)
    return {
        "allowed": allowed,
        "per_node": Counter(pod.node for pod in evicted if pod.node),
        "per_namespace": Counter(pod.namespace for pod in evicted),
        "total": len(evicted),
    }


def _limited_differently(given: Case, expected: Case) -> Difference | None:
    if given["kind"] == "limit_global" and not expected["allowed"]:
        others = {job["pod"] for job in given["jobs"]} - {given["candidate"]["pod"]}
        if len(others) < given["limit"]:
            return Difference(*PODS_COUNT, {"allowed": True})
    if given["kind"] == "limit_unavailable" and not expected["allowed"]:
        name, unavailable = given["candidate"]["pod"], given.get("unavailable_pods") or ()
        limit = workload_limit(given["replicas"], given["max_unavailable"])
        if name in unavailable and len({*unavailable} - {name}) < limit:
            return Difference(*ITSELF, {"allowed": True})
    return None


@group("limits_reached, replica_guard, workload_limit", differs=_limited_differently)
def migration_limits(case: Case) -> object:
    """How many pods may be on the move, and how often."""
    return _run(case, {
        "max_unavailable": lambda case: {
            "max": workload_limit(case["replicas"], case["setting"])
        },
        "limit_global": _at_once, "limit_node": _at_once, "limit_namespace": _at_once,
        "limit_workload": _of_workload, "limit_unavailable": _of_workload,
        "expected_replicas": _replicas, "object_limiter": _object_limiter,
        "cycle_limiter": _cycle_limiter,
        "cycle_exhausted": lambda case: {
            "exhausted": is_exhausted(case["evicted_on_node"], case["per_node"])
        },
    })  # fmt: skip


# -- arbitration


def _names(jobs: Sequence[Case], order: Sequence[int]) -> object:
    return {"order": [jobs[position]["name"] for position in order]}


def _by_creation(case: Case) -> object:
    jobs = case["jobs"]
    requests = [Request(created_at=job["created_at"]) for job in jobs]
    return _names(jobs, by_creation(requests, range(len(jobs))))


def _by_rank(case: Case) -> object:
    ranks = case["pod_rank_of_job"]
    requests = [Request(rank=None if rank is None else (rank,)) for rank in ranks.values()]
    order, names = by_pod_rank(requests, range(len(requests))), [*ranks]
    return {"order": [names[position] for position in order]}


def _by_batch_job(case: Case) -> object:
    jobs = case["jobs"]
    requests = [Request(batch_job=job["batch_job"]) for job in jobs]
    return _names(jobs, by_batch_job(requests, range(len(jobs))))


def _by_siblings(case: Case) -> object:
    jobs = case["jobs"]
    requests = [Request(batch_job=job["batch_job"]) for job in jobs]
    moving = plain(case["moving_per_batch_job"])
    return _names(jobs, by_moving_siblings(requests, range(len(jobs)), moving))


def _full_order(case: Case) -> object:
    jobs = case["jobs"]
    return _names(jobs, arbitration_order([*map(_request, jobs)], {}))


def _request(job: Case) -> Request:
    pod, rank = job.get("pod"), None
    if pod is not None:
        labels = {"koordinator.sh/priority-class": pod["priority_class"]}
        labels["koordinator.sh/qosClass"] = pod["koord_qos"]
        names = pod_class(labels, pod["priority"], pod["k8s_qos"])
        record = PodRecord(
            node="n", uid=pod["name"], cgroup_uid="", namespace="d", name=pod["name"],
            pod_class=names.priority_class, qos=names.qos, priority=pod["priority"],
            created_at=format_time(pod["created_at"]),
        )  # fmt: skip
        rank = pod_rank(record, pod["k8s_qos"])
    return Request(job["created_at"], rank, job["batch_job"])


def _verdict(case: Case) -> object:
    return {
        "verdict": judge(
            exists=case["pod_found"], is_evictable=case["hard_checks_ok"],
            is_within_limits=case["soft_checks_ok"],
        )
    }  # fmt: skip


def _round(case: Case) -> object:
    results: dict[str, list[int]] = {"wait": [], "pass": [], "fail": []}
    for job in range(case["jobs"]):
        hard, soft = job in case["hard_check_fails"], job in case["soft_check_fails"]
        results[judge(exists=True, is_evictable=not hard, is_within_limits=not soft)].append(job)
    return results


def _moving(case: Case) -> object:
    """Evictions that wait are not on the move; those that passed are noted before they are asked
    for."""
    history = EvictionHistory(3600.0, 300.0)
    plain(case["waiting"])
    for number in range(case["running"] + case["passed_pending"]):
        history.note(Candidate(f"{number}", "n", "d"), 0.0)
    return {"moving": len(history.leaving)}


@group("arbitration_order, judge, EvictionHistory.leaving")
def arbitrator(case: Case) -> object:
    """The order of waiting evictions, and what becomes of each."""
    return _run(case, {
        "by_creation": _by_creation, "by_pod_rank": _by_rank, "by_batch_job": _by_batch_job,
        "by_moving_siblings": _by_siblings, "full_order": _full_order, "verdict": _verdict,
        "round": _round, "moving_count": _moving,
    })  # fmt: skip


# -- the Eviction API


def _budget(number: int, case: Case) -> DisruptionBudget:
    is_stale = case.get("status_older_than_spec") or case.get("stale")
    disrupted = dict.fromkeys(map(str, range(case.get("disrupted_pods") or 0)), "t")
    policy = case.get("unhealthy_pod_eviction_policy") or case.get("unhealthy_policy")
    tree = {
        "metadata": {"name": f"b{number}", "namespace": "d", "generation": 1},
        "spec": {"selector": {}, "unhealthyPodEvictionPolicy": policy},
        "status": {
            "disruptionsAllowed": case.get("disruptions_allowed") or 0,
            "currentHealthy": case.get("current_healthy") or 0,
            "desiredHealthy": case.get("desired_healthy") or 0,
            "observedGeneration": 0 if is_stale else 1, "disruptedPods": disrupted,
        },
    }  # fmt: skip
    return msgspec.convert(tree, DisruptionBudget)


def _answer(case: Case) -> object:
    given = case["pod"]
    uid = given.get("uid") or "1"
    record = PodRecord(
        node="n", uid=uid, cgroup_uid=uid, namespace="d", name="a", phase=given["phase"],
        deleted_at=format_time(0.0) if given.get("terminating") else None,
    )  # fmt: skip
    pod = LivePod(record=record, is_ready=given.get("ready", True))
    exists = given.get("exists", True)
    budgets = [_budget(number, each) for number, each in enumerate(case.get("pdbs") or ())]
    wanted = case.get("precondition_uid") or uid
    return {"status": expected_answer(pod if exists else None, wanted, budgets).status}


def _client_action(case: Case) -> object:
    action = action_for(case["status"])
    return {"action": action, "meaning": meaning_of(action)}


def _retry(case: Case) -> object:
    waited, answers = 0.0, case["answers"]
    for attempt, answer in enumerate(answers, 1):
        step = next_step(
            answer["status"], answer.get("retry_after_s"), waited_seconds=waited,
            deadline_seconds=case["deadline_s"], default_seconds=case["default_wait_s"],
        )  # fmt: skip
        if step.wait_seconds is None or attempt == len(answers):
            for rest in answers[attempt:]:
                plain(rest)
            return {"attempts": attempt, "result": step.action, "waited_s": waited}
        waited += step.wait_seconds
    raise LookupError("no answers")


def _worded_differently(given: Case, expected: Case) -> Difference | None:
    if given["kind"] != "client_action":
        return None
    action = action_for(given["status"])
    if expected["action"] != action or expected["meaning"] == meaning_of(action):
        return None
    return Difference(*OWN_WORDS, {"action": action, "meaning": meaning_of(action)})


@group("expected_answer, action_for, meaning_of, next_step", differs=_worded_differently)
def eviction_api(case: Case) -> object:
    """What the API server answers to an eviction, and what the evictor does then."""
    return _run(case, {"answer": _answer, "client_action": _client_action, "retry": _retry})


def _run(case: Case, kinds: Mapping[str, Callable[[Case], object]]) -> object:
    return kinds[case["kind"]](case)
