"""koord-scheduler reads the NodeMetrics of our cluster actuator, and refuses the nodes that our
extender refuses with the same arguments. `make koordinator` runs this and prints the result."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.processors.kubernetes.object_records import USAGE_THRESHOLDS
from pipeline.settings import Settings
from pipeline.times import parse_time
from tests.cluster.exporters import WINDOW_SECONDS
from tests.cluster.extender_cluster import PORT, config_flags, extender
from tests.cluster.koordinator import (
    CONFIG_VERSION,
    Program,
    exporters,
    koord_scheduler,
    module,
    prepare,
    profile,
    verdicts,
)
from tests.cluster.objects import Object, apply, delete, items, named, node, pod, write_policy
from tests.cluster.roles import Role, in_step, worker, worker_in_step
from tests.processes import until

pytestmark = [pytest.mark.peer, pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(3600)]

PROD, BATCH = ({"koordinator.sh/priority-class": f"koord-{name}"} for name in ("prod", "batch"))
WINDOWS = 20
STALE_WINDOWS = 240
"""Windows that silent nodes missed, and so two hours."""
EXPIRATION_SECONDS = 3600


class Usage(NamedTuple):
    """Cores of 32 that the pods of Prod and Batch use in each window but one, of which the cores of
    Prod are `peak` and the number, from the end, `peak_window`. The system uses 0.25 more.
    `requested` are the cores that Prod's pod requests."""

    prod: float
    batch: float = 0.0
    peak: float = 0.0
    peak_window: int = 5
    gib: float = 2.0
    requested: str = "100m"


USAGE = {
    "cool": Usage(6.0),
    "hot": Usage(24.0),
    # 20.96 cores, 1.7 of them estimated for the pod to place, are 65.5%, which counts as 66%.
    "just-below": Usage(18.7, 0.307),
    "just-above": Usage(18.7, 0.312),
    "hot-by-prod": Usage(17.0, 1.0),
    "hot-by-batch": Usage(4.0, 20.0),
    "hot-by-memory": Usage(6.0, gib=124.0),
    "hot-by-p95": Usage(10.0, peak=29.0),
    "hot-just-now": Usage(6.0, peak=24.0, peak_window=1),
    "hot-by-own-threshold": Usage(6.0),
    "allowed-to-be-hot": Usage(24.0),
    "hot-before-amplification": Usage(22.0),
    "with-pods-on-their-way": Usage(6.0),
    "with-pods-that-start": Usage(6.0, requested="24"),
    "silent": Usage(6.0),
    "silent-and-hot": Usage(24.0),
    "never-reported": Usage(6.0),
}
SILENT, UNREPORTED = frozenset({"silent", "silent-and-hot"}), frozenset({"never-reported"})


def own_thresholds(percent: int) -> dict[str, str]:
    """The annotation of a node with thresholds of cpu."""
    cpu = {"cpu": percent}
    aggregated = {"usageThresholds": cpu, "usageAggregationType": "p95"}
    thresholds = {"usageThresholds": cpu, "prodUsageThresholds": cpu, "aggregatedUsage": aggregated}
    return {USAGE_THRESHOLDS: json.dumps(thresholds)}


ANNOTATIONS = {
    "hot-by-own-threshold": own_thresholds(10),
    "allowed-to-be-hot": own_thresholds(95),
    "hot-before-amplification": {"node.koordinator.sh/raw-allocatable": '{"cpu": "32"}'},
}
AMPLIFIED = {"hot-before-amplification": "64"}
"""Cores of a Node if they are not 32."""


def over_minutes(statistic: str, duration: str) -> Object:
    """Arguments that compare a statistic of usage."""
    return {
        "aggregated": {
            "usageThresholds": {"cpu": 65, "memory": 95}, "usageAggregationType": statistic,
            "usageAggregatedDuration": duration,
        }
    }  # fmt: skip


ARGUMENTS: dict[str, Object] = {
    "usage": {},
    "prod": {"prodUsageThresholds": {"cpu": 57, "memory": 90}},
    "prod-and-system": {"prodUsageThresholds": {"cpu": 58}, "prodUsageIncludeSys": True},
    "p95-5m": over_minutes("p95", "5m"),
    "average-10m": over_minutes("avg", "10m"),
    "any-age": {"filterExpiredNodeMetrics": False},
    "expired-passes": {"enableScheduleWhenNodeMetricsExpired": True},
    "slow-start": {"estimatedSecondsAfterPodScheduled": 1800},
}
PODS: dict[str, Object] = {
    "prod": {"labels": PROD, "cpu": "2", "memory": "4Gi"},
    "batch": {"labels": BATCH},
}

# Stated in docs/how-to/migrate-from-koordinator.md: the node, and the arguments that differ.
LAST_WINDOW = ARGUMENTS.keys() - {"p95-5m", "average-10m"}
DIFFERENCES = {
    # The extender compares the last window, a NodeMetric has the average of a minute or more.
    "hot-just-now": LAST_WINDOW,
    # A node that never reported is no node whose report is old.
    "never-reported": ARGUMENTS.keys() - {"any-age", "expired-passes"},
}


def usage_of(name: str, step: int) -> tuple[float, float]:
    """Cores and bytes of a pod in a window."""
    kind, _, node_name = name.partition("-on-")
    usage = USAGE[node_name]
    if kind == "batch":
        return usage.batch, 2.0**30
    is_peak = usage.peak and step == WINDOWS - usage.peak_window
    return usage.peak if is_peak else usage.prod, usage.gib * 2.0**30


def refusals(asked: Object, names: list[str]) -> dict[str, str]:
    """The reason for each node that the extender refuses."""
    body = json.dumps({"Pod": asked, "NodeNames": names}).encode()
    request = Request(f"http://127.0.0.1:{PORT}/filter", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=30) as answer:
        reply = json.loads(answer.read())
    assert not reply["Error"], reply
    return (reply["FailedNodes"] or {}) | (reply["FailedAndUnresolvableNodes"] or {})


def configuration(name: str) -> Object:
    """The profile of the scheduler with these arguments."""
    return profile(name, {"nodeMetricExpirationSeconds": EXPIRATION_SECONDS, **ARGUMENTS[name]})


@contextmanager
def extender_of(settings: Settings, folder: Path, name: str) -> Iterator[Role]:
    """The extender with the configuration that koord-scheduler has."""
    tree = {"apiVersion": CONFIG_VERSION, "kind": "KubeSchedulerConfiguration"}
    flags = config_flags(folder, {**tree, "profiles": [configuration(name)]})
    with extender(settings, *flags) as role:
        yield role
        # A graceful end takes three seconds.
        role.kill()


@pytest.fixture(scope="module", autouse=True)
def definitions(plane: ControlPlane) -> None:
    prepare(plane, "koord-scheduler")


async def test_koord_scheduler_refuses_the_nodes_that_the_extender_refuses(
    plane: ControlPlane, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    colocation = {
        "enable": True, "metricReportIntervalSeconds": WINDOW_SECONDS,
        "metricAggregateDurationSeconds": 60,
    }  # fmt: skip
    write_policy(plane, settings.kubernetes.config_name, colocation_config=colocation)
    apply(plane, *(
        node(name, cpu=AMPLIFIED.get(name, "32"), memory="128Gi", annotations=ANNOTATIONS.get(name))
        for name in USAGE
    ))  # fmt: skip
    with Role("watcher", settings), worker(settings):
        await place(plane, *(
            pod(f"{kind}-on-{name}", among=[name], labels=labels, memory="128Mi",
                cpu=usage.requested if kind == "prod" else "100m")
            for name, usage in USAGE.items() for kind, labels in (("prod", PROD), ("batch", BATCH))
        ))  # fmt: skip
        await until(lambda: in_step(plane, settings))
        await until(lambda: worker_in_step(settings))
        flags = ("--mode", "act", "--node-metrics", "--writes-per-second", "50")
        with Role("actuator", settings, *flags):
            await until(lambda: named(plane, "nodemetrics").keys() == USAGE.keys())
            await report(plane, settings)
            profiles = [configuration(name) for name in ARGUMENTS]
            with koord_scheduler(plane, tmp_path, profiles) as scheduler:
                await place(plane, pod("late", among=["with-pods-on-their-way"], labels=PROD,
                                       cpu="16", memory="16Gi"))  # fmt: skip
                await until(lambda: in_step(plane, settings))
                lines, differences = await compare(plane, settings, scheduler, tmp_path)
    with capsys.disabled():
        title = f"koord-scheduler {module()['Version']} and the extender, {len(USAGE)} nodes"
        sys.stdout.write("\n".join(["", title, *lines, ""]))
    assert differences == DIFFERENCES


async def place(plane: ControlPlane, *pods: Object) -> None:
    """Create pods; return when kube-scheduler has bound them, and they run."""
    apply(plane, *pods)
    await until(lambda: all(p["status"]["phase"] == "Running" for p in items(plane, "pods")))


async def report(plane: ControlPlane, settings: Settings) -> None:
    """Send the usage of all nodes but those that never report; return when their NodeMetrics are
    current."""
    bound = max(scheduled_seconds(item) for item in items(plane, "pods"))
    # Pods that were placed before the last window began are not on their way any more.
    await until(lambda: time.time() // WINDOW_SECONDS * WINDOW_SECONDS - WINDOW_SECONDS > bound, 90)
    silent = exporters(plane, settings, WINDOWS + STALE_WINDOWS, SILENT, usage_of)
    live = exporters(plane, settings, WINDOWS, USAGE.keys() - SILENT - UNREPORTED, usage_of)
    await silent.send(WINDOWS)
    await live.send(WINDOWS)
    ends = {
        name: None if name in UNREPORTED else (silent if name in SILENT else live).last_end()
        for name in USAGE
    }

    def are_current() -> bool:
        metrics = named(plane, "nodemetrics").items()
        return {n: item.get("status", {}).get("updateTime") for n, item in metrics} == ends

    await until(are_current, 120)


def scheduled_seconds(item: Object) -> float:
    """When a pod was bound, Unix time."""
    (condition,) = (c for c in item["status"]["conditions"] if c["type"] == "PodScheduled")
    return parse_time(condition["lastTransitionTime"])


async def compare(
    plane: ControlPlane, settings: Settings, scheduler: Program, folder: Path
) -> tuple[list[str], dict[str, set[str]]]:
    """Ask both about each node, with all arguments and pods; returns lines for people, and the
    arguments by which both differ, by node."""
    lines, examples, differences = [], dict[str, str](), dict[str, set[str]]()
    for arguments in ARGUMENTS:
        # Before koord-scheduler places pods, which would count as on their way.
        await until(lambda: in_step(plane, settings))
        with extender_of(settings, folder, arguments) as role:
            await role.logs("table caught up")
            ours = {kind: refusals(pod("asked", **PODS[kind]), [*USAGE]) for kind in PODS}
        for kind in PODS:
            theirs = await decide(plane, scheduler, arguments, kind)
            reasons = {name: (ours[kind].get(name, ""), theirs[name]) for name in USAGE}
            different = [name for name, pair in reasons.items() if not is_same(*pair)]
            for name in different:
                differences.setdefault(name, set()).add(arguments)
                examples.setdefault(name, difference(*reasons[name]))
            same = Counter(bool(theirs[name]) for name in USAGE if name not in different)
            lines.append(
                f"{arguments:15}  {kind:5}  both take {same[False]:2}, both refuse {same[True]:2}"
                + "".join(f", not {name}" for name in different)
            )
    return lines + [f"{name}: {example}" for name, example in examples.items()], differences


async def decide(
    plane: ControlPlane, scheduler: Program, arguments: str, kind: str
) -> dict[str, str]:
    """Let koord-scheduler place a pod on each node; returns its reasons, empty where it did."""
    pods = {name: pod(f"{kind}-for-{name}", among=[name], **PODS[kind]) for name in USAGE}
    for each in pods.values():
        each["spec"]["schedulerName"] = arguments
    names = [each["metadata"]["name"] for each in pods.values()]
    apply(plane, *pods.values())
    await until(lambda: verdicts(plane, names) is not None, 120, scheduler.tail)
    decided = verdicts(plane, names)
    assert decided is not None
    delete(plane, "pod", *names)
    return {name: decided[each["metadata"]["name"]] for name, each in pods.items()}


def is_same(ours: str, theirs: str) -> bool:
    """Whether both pass a node, or refuse it for the same reason. The extender's reasons name
    thresholds for Prod."""
    return bool(ours) == bool(theirs) and ours.replace(" prod ", " ") in theirs


def difference(ours: str, theirs: str) -> str:
    """Both verdicts in words; koord-scheduler's reason also has the nodes that a pod was not
    for."""
    reason = theirs.partition(",")[0].partition("available: ")[2]
    verdicts = [f"refuses ({text})" if text else "takes" for text in (ours, reason)]
    return "the extender {}, koord-scheduler {}".format(*verdicts)
