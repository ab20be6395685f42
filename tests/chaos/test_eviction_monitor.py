"""The monitor accepts sound evictions, and finds one violation of each limit in an audit log."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.times import format_time, parse_time
from pipeline.topics.alerts import AlertRecord, Transition
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod
from tests.chaos.audit_log import AUDIT_POLICY, AuditEvent, read_events, replay
from tests.chaos.eviction_monitor import (
    Bucket,
    Limits,
    Observed,
    PublishedAlert,
    PublishedPlan,
    accepted,
    read_limits,
    share_of,
    violations,
)
from tests.chaos.eviction_stage import configuration
from tests.chaos.eviction_storm import CAPS, LIMITS
from tests.chaos.limit_storms import STORMS

START = 1_700_000_000.0
AGENT = "springtide-evictor/1"


class Log:
    """An audit log, line by line. Pods `0` to `9` have nodes of even and odd numbers, namespaces
    `a` and `b`, and are those of a Deployment if the log has one."""

    def __init__(self, *, of_deployment: bool = False, per_minute: float = 6000.0) -> None:
        self.lines: list[dict[str, Any]] = []
        self.limits = Limits(per_minute, per_node=None, per_second=100.0)
        self.intended: dict[str, list[float]] = {}
        self.alerts: list[PublishedAlert] = []
        self._owner = []
        if of_deployment:
            self._owner = [{"kind": "ReplicaSet", "name": "web-h", "controller": True}]
            self.limits.workload_bucket = Bucket(0.0, None, 1)
            self.limits.per_workload = self.limits.unavailable = "100%"
            web = {"kind": "Deployment", "metadata": {"namespace": "a", "name": "web"}}
            self.add(-10.0, "create", "deployments", "", web | {"spec": {"replicas": 10}})
        for number in range(10):
            self.changed(-10.0, f"{number}")

    def add(self, at: float, verb: str, resource: str, name: str, answer: Any, **more: Any) -> None:
        self.lines.append({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "stage": "ResponseComplete",
            "verb": verb, "userAgent": "kubectl/1",
            "user": {"username": "someone"}, "requestReceivedTimestamp": format_time(START + at),
            "objectRef": {"resource": resource, "namespace": self.namespace(name), "name": name},
            "responseStatus": {"code": 200}, "responseObject": answer, **more,
        })  # fmt: skip

    def namespace(self, name: str) -> str:
        return "b" if name.isdigit() and int(name) % 4 > 1 and not self._owner else "a"

    def changed(self, at: float, name: str, *, is_ready: bool = True, **metadata: Any) -> None:
        """A pod was created or changed; its UID is its name."""
        ready = [{"type": "Ready", "status": "True" if is_ready else "False"}]
        node = f"n{int(name) % 2}" if name.isdigit() else "n9"
        self.add(at, "patch", "pods", name, {
            "kind": "Pod", "spec": {"nodeName": node, "terminationGracePeriodSeconds": 30},
            "metadata": {
                "uid": name, "name": name, "namespace": self.namespace(name),
                "labels": {"pod-template-hash": "h"}, "ownerReferences": self._owner, **metadata,
            },
            "status": {"conditions": ready},
        })  # fmt: skip

    def gone(self, at: float, name: str) -> None:
        deleted_at = format_time(START)
        self.changed(at, name, deletionTimestamp=deleted_at, deletionGracePeriodSeconds=0)

    def evicted(self, at: float, *names: str, uid: str | None = None, **more: Any) -> None:
        """Pods are evicted, and their evictions are recorded just before."""
        for name in names:
            options = {"preconditions": {"uid": name if uid is None else uid}}
            self.add(at, "create", "pods", name, {"kind": "Status"}, **{
                "userAgent": AGENT, "requestObject": {"deleteOptions": options}, **more,
            })  # fmt: skip
            self.lines[-1]["objectRef"]["subresource"] = "eviction"
            self.intended.setdefault(name, []).append(START + at)
            at += 0.02

    def bound(self, at: float, node: str, *, created_at: float) -> None:
        """A replacement is created, and a scheduler binds it to the node."""
        self.changed(created_at, "new", is_ready=False)
        self.lines[-1]["responseObject"]["spec"] = {}
        target = {"target": {"name": node}}
        self.add(at, "create", "pods", "new", {"kind": "Status"}, requestObject=target)
        self.lines[-1]["objectRef"]["subresource"] = "binding"

    def alert(self, at: float, node: str, transition: Transition = "opened") -> None:
        """The alert of a node changes."""
        time = format_time(START)
        record = AlertRecord(
            node=node, as_of=time, generation=1, offset=1, epoch=1, id=node, rule="node_cpu",
            transition=transition, severity="warning", since=time, duration_seconds=0.0,
        )  # fmt: skip
        self.alerts.append(PublishedAlert(record, START + at))

    def events(self) -> list[AuditEvent]:
        return msgspec.convert(sorted(self.lines, key=_received), list[AuditEvent])

    def problems(self) -> list[str]:
        """The names of what is exceeded."""
        return [violation.limit for violation in violations(self.observed())]

    def observed(self) -> Observed:
        """What the monitor judges: a plan of each node names its pods for a minute."""
        plans = [
            EvictionPlanRecord(
                node=f"n{odd}", id=f"{odd}", at=format_time(START), planner="test", why="",
                valid_until=format_time(START + 60),
                pods=tuple(
                    LeavingPod(uid=f"{n}", pod_class="mid", target="n5") for n in range(odd, 10, 2)
                ),
            )
            for odd in range(2)
        ]  # fmt: skip
        published = [PublishedPlan(plan, START) for plan in plans]
        return Observed(self.events(), self.limits, published, self.intended, self.alerts)


def _received(line: dict[str, Any]) -> float:
    return parse_time(line["requestReceivedTimestamp"])


def with_limits(name: str, value: Any, *, of_deployment: bool = False) -> Log:
    log = Log(of_deployment=of_deployment)
    setattr(log.limits, name, value)
    return log


@pytest.mark.parametrize(
    ("limit", "name", "value", "of_deployment", "pods"),
    [
        ("global", "globally", 2, False, "012"),
        ("node", "per_node", 2, False, "0246"),
        ("namespace", "per_namespace", 2, False, "014"),
        ("workload", "per_workload", 2, True, "012"),
        ("unavailable", "unavailable", "20%", True, "012"),
        ("workload limiter", "workload_bucket", Bucket(60.0, 2, 2), True, "012"),
        ("namespace limiter", "namespace_bucket", Bucket(60.0, 2, 2), False, "014"),
        ("cycle of a node", "cycle_per_node", 2, False, "024"),
        ("cycle of a namespace", "cycle_per_namespace", 2, False, "014"),
        ("cycle", "cycle_total", 2, False, "012"),
    ],
)
def test_one_eviction_too_many_names_its_limit(
    limit: str, name: str, value: Any, *, of_deployment: bool, pods: str
) -> None:
    log = with_limits(name, value, of_deployment=of_deployment)
    log.evicted(1.0, *pods[:2])
    assert log.problems() == []
    log.evicted(2.0, *pods[2:])
    assert {*log.problems()} == {limit}


@pytest.mark.parametrize(
    ("name", "value"), [("globally", 2), ("per_node", 1), ("per_namespace", 2)]
)
def test_pods_that_are_gone_make_room(name: str, value: int) -> None:
    log = with_limits(name, value)
    log.evicted(1.0, "0", "1")
    log.gone(2.0, "0")
    log.evicted(3.0, "4")
    assert log.problems() == []


def test_a_gone_pod_moves_until_its_replacement_is_ready() -> None:
    log = with_limits("per_workload", 1, of_deployment=True)
    log.evicted(1.0, "0")
    log.gone(2.0, "0")
    log.changed(3.0, "new", is_ready=False)
    log.evicted(4.0, "1")
    assert log.problems() == ["workload"]
    log.lines.pop()
    log.changed(3.5, "new")
    log.evicted(4.0, "1")
    assert log.problems() == []


@pytest.mark.parametrize("seconds", [29.0, 31.0])
def test_a_limiter_gives_back_with_time(seconds: float) -> None:
    log = with_limits("workload_bucket", Bucket(60.0, 2, 1), of_deployment=True)
    log.evicted(1.0, "0")
    log.evicted(1.0 + seconds, "1")
    assert log.problems() == (["workload limiter"] if seconds < 30 else [])


def test_evictions_that_are_closer_than_the_rate_allows() -> None:
    log = Log(per_minute=60.0)
    log.evicted(1.0, "0")
    log.evicted(2.0, "1")
    assert log.problems() == []
    log.evicted(2.9, "2")
    assert log.problems() == ["rate"]


def test_evictions_at_once_beyond_the_burst() -> None:
    log = Log()
    log.limits.per_second, log.limits.burst = 1.0, 2
    log.evicted(1.0, "0", "1")
    log.evicted(2.0, "2")
    assert log.problems() == []
    log.evicted(2.5, "3")
    assert log.problems() == ["evictQPS"]


def again(log: Log) -> None:
    log.evicted(3.0, "0")


def by_name(log: Log) -> None:
    log.evicted(3.0, "1", uid="")


def successor(log: Log) -> None:
    """The pod was replaced by one of its name since it was planned."""
    log.gone(2.0, "1")
    log.changed(2.5, "1", uid="successor")
    log.intended["successor"] = [START]
    log.evicted(3.0, "1", uid="successor")


def late(log: Log) -> None:
    log.evicted(66.0, "1")


def early(log: Log) -> None:
    log.evicted(-1.0, "1")


def without_record(log: Log) -> None:
    log.evicted(3.0, "1")
    log.intended["1"] = [START + 4.0]


def deleted(log: Log) -> None:
    log.add(3.0, "delete", "pods", "1", None, userAgent="springtide-actuator/1")


@pytest.mark.parametrize(
    ("name", "seed_mistake"),
    [
        ("twice", again), ("UID", by_name), ("plan", successor), ("plan", late), ("plan", early),
        ("record", without_record), ("DELETE", deleted),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)  # fmt: skip
def test_a_mistake_is_found(name: str, seed_mistake: Callable[[Log], None]) -> None:
    log = Log()
    log.evicted(1.0, "0")
    assert log.problems() == []
    seed_mistake(log)
    assert log.problems() == [name]


def relieved() -> Log:
    """A pod left the hot node `n0` for `n5`."""
    log = Log(of_deployment=True)
    log.alert(-60.0, "n0")
    log.evicted(1.0, "0")
    log.gone(20.0, "0")
    return log


@pytest.mark.parametrize("closed_at", [None, 30.0])
def test_a_replacement_on_the_node_that_its_workload_left(closed_at: float | None) -> None:
    log = relieved()
    if closed_at is not None:
        log.alert(closed_at, "n0", "closed")
    log.bound(40.0, "n0", created_at=20.0)
    assert log.problems() == ["return"]


def test_a_pod_that_was_planned_after_another_of_its_workload_left() -> None:
    log = relieved()
    log.evicted(30.0, "2")
    assert log.problems() == []
    plan = EvictionPlanRecord(
        node="n0", id="later", at=format_time(START + 20), planner="planner", why="",
        valid_until=format_time(START + 80), pods=(LeavingPod(uid="4", pod_class="mid"),),
    )  # fmt: skip
    log.gone(35.0, "2")
    log.evicted(60.0, "4")
    observed = log.observed()
    first, *_ = observed.plans
    pods = tuple(pod for pod in first.plan.pods if pod.uid != "4")
    kept = PublishedPlan(msgspec.structs.replace(first.plan, pods=pods), START)
    observed.plans = [kept, *observed.plans[1:], PublishedPlan(plan, START + 20)]
    assert [each.limit for each in violations(observed)] == ["rest"]


def test_a_target_that_gets_hot() -> None:
    log = relieved()
    log.alert(90.0, "n5")
    assert log.problems() == ["target"]


@pytest.mark.parametrize(
    ("node", "bound_at", "alerts"),
    [
        ("n5", 40.0, []),
        ("n1", 40.0, []),
        ("n0", 5.0, [(4.0, "n0", "closed")]),
        ("n0", 40.0, [(-30.0, "n5", "opened")]),
        ("n0", 320.0, []),
    ],
    ids=["target", "other node", "just evicted", "target hot", "waited for long"],
)
def test_a_replacement_that_may_be_where_it_is(
    node: str, bound_at: float, alerts: list[tuple[float, str, Transition]]
) -> None:
    log = relieved()
    for change in alerts:
        log.alert(*change)
    log.bound(bound_at, node, created_at=20.0)
    assert log.problems() == []


def test_what_evicts_no_pod_of_ours_is_no_violation() -> None:
    log = with_limits("globally", 1)
    log.evicted(1.0, "0")
    log.evicted(2.0, "1", responseStatus={"code": 429})
    dry = {"deleteOptions": {"preconditions": {"uid": "1"}, "dryRun": ["All"]}}
    log.evicted(3.0, "1", requestObject=dry)
    log.evicted(4.0, "2", userAgent="kubectl/1")
    log.add(5.0, "delete", "pods", "3", None)
    assert log.problems() == []
    assert [eviction.name for eviction in accepted(log.events())] == ["0"]


def test_the_log_is_read_without_events_that_are_not_whole(tmp_path: Path) -> None:
    log = Log()
    log.evicted(1.0, "0")
    text = b"\n".join(msgspec.json.encode(line) for line in log.lines)
    old, new = tmp_path / "audit-1.log", tmp_path / "audit.log"
    old.write_bytes(text[: text.index(b"\n") + 1])
    new.write_bytes(text[text.index(b"\n") + 1 :])
    assert read_events([old, new], START - 10) == log.events()
    new.write_bytes(new.read_bytes()[:-5])
    assert read_events([old, new], START - 10) == log.events()[:-1]
    # The server was killed, and goes on in the line.
    new.write_bytes(new.read_bytes() + msgspec.json.encode(log.lines[-1]))
    assert read_events([old, new], START - 10) == log.events()
    assert len(read_events([old, new], START + 1)) == 1


def test_the_pod_is_bound_and_leaves() -> None:
    log = Log()
    log.lines.clear()
    log.changed(0.0, "0")
    log.lines[-1]["responseObject"]["spec"] = {}
    target = {"target": {"name": "n7"}}
    log.add(1.0, "create", "pods", "0", {"kind": "Status"}, requestObject=target)
    log.lines[-1]["objectRef"]["subresource"] = "binding"
    log.add(2.0, "delete", "pods", "0", {"kind": "Status"})
    ((cluster, _),) = replay(log.events())
    assert cluster.pods["0"].node == "n7"
    assert cluster.pods["0"].gone_at == START + 2.0


@pytest.mark.parametrize("name", STORMS)
def test_limits_of_a_configuration_are_read(name: str) -> None:
    storm = STORMS[name]
    read = read_limits(configuration(storm.args, storm.caps), storm.per_minute)
    others = {"maxMigratingPerNode": 3, "evictQPS": 1000, **storm.args}
    assert read != read_limits(configuration(others, {}), 6000.0)


def test_limits_of_the_storm_are_read() -> None:
    assert read_limits(configuration(LIMITS, CAPS), 120.0) == Limits(
        120.0, globally=8, per_node=2, per_namespace=6, per_workload=2, unavailable=3,
        ttl_seconds=20.0, workload_bucket=Bucket(60.0, 6, 2), namespace_bucket=Bucket(60.0, 60, 6),
        cycle_seconds=5.0, cycle_per_node=2, cycle_per_namespace=5, cycle_total=7,
    )  # fmt: skip


def test_shares_of_replicas() -> None:
    assert [share_of(n, None) for n in (1, 3, 4, 10, 11, 25)] == [1, 1, 2, 2, 1, 2]
    assert [share_of(10, setting) for setting in ("25%", "1%", 4)] == [2, 1, 4]


def test_the_policy_logs_every_change_of_pods() -> None:
    (first, *_) = AUDIT_POLICY["rules"]
    assert {"create", "delete", "deletecollection"} <= {*first["verbs"]}
