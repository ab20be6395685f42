"""What it takes the cluster watcher to get in step with a cluster, and to stay there.

    python -m benchmarks.watcher --fake-pods 1000000 [--nodes 10000] [--changes 50]
    python -m benchmarks.watcher --real 20000 [--nodes 200] [--changes 50]

The watcher is run as users run it, with a real broker. `--fake-pods` lists as many pods from a fake
API server (`benchmarks.api_server`: no machine of ours holds a million of them for real), as
compressed pages of 4.5 KB a pod, and changes some while it watches; then the watcher is started
again and has nothing to write. `--real` makes pods on a real API server, with KWOK for kubelets.

Measured are the seconds from the start of the process until a whole list of every kind is on the
topics, its processor time and the most memory that it had, and, over `--seconds` of changes, the
time from a change to the broker's time of its record. Goals: a million pods within 120 s and 1 GiB.
"""

import argparse
import asyncio
import json
import multiprocessing
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks import api_server
from benchmarks.exporter import Cost, cost
from benchmarks.roles import springtide
from pipeline.clock import SystemClock
from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import apply_topics
from pipeline.kube.api_client import Api, open_api
from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.local.local_kafka import LocalKafka, local_kafka
from pipeline.local.port_probe import free_port
from pipeline.settings import KubernetesSettings, Settings, load_settings
from pipeline.topics.registry import PODS

PREFIX = "watched"
KINDS = 8
LIMIT_SECONDS = 1200.0
AT_ONCE = 32


class InStep(NamedTuple):
    """What it took until all was on the topics."""

    seconds: float
    cost: Cost
    records: int


class Watching(NamedTuple):
    """A watcher that runs."""

    pid: int
    began: float
    port: int
    is_alive: Callable[[], bool]

    def until_in_step(self) -> InStep:
        """Wait until every kind is in step. The most memory is that until then."""
        while True:
            page = metrics(self.port)
            if sum(value for name, value in page if name.startswith(IN_STEP)) == KINDS:
                records = sum(v for name, v in page if name.startswith(RECORDS))
                return InStep(time.monotonic() - self.began, cost(self.pid), int(records))
            if not self.is_alive() or time.monotonic() > self.began + LIMIT_SECONDS:
                raise SystemExit("the watcher ended, or is not in step in time")
            time.sleep(0.2)


IN_STEP = "springtide_watcher_in_step{"
RECORDS = "springtide_source_records_total{"


def metrics(port: int) -> list[tuple[str, float]]:
    """Names with labels, and values; empty while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    except OSError:
        return []
    return [(name, float(value)) for name, value in re.findall(r"^(\S+) (\S+)$", text, re.M)]


@contextmanager
def watcher(settings: Settings, log: Path) -> Iterator[Watching]:
    """A watcher process of its own."""
    port = free_port()
    kafka, kubernetes = settings.kafka, settings.kubernetes
    began = time.monotonic()
    with springtide(
        *("watcher", "--bootstrap-servers", kafka.bootstrap_servers),
        *("--topic-prefix", kafka.topic_prefix, "--partitions", str(kafka.partitions)),
        *("--kubeconfig", str(kubernetes.kubeconfig), "--metrics-port", str(port)),
        log=log,
    ) as child:
        yield Watching(child.pid, began, port, lambda: child.poll() is None)


@contextmanager
def fake_api_server(folder: Path, nodes: int, pods: int, changes: float) -> Iterator[Path]:
    """A fake API server in a process of its own; gives the kubeconfig that leads to it."""
    port = free_port()
    server = multiprocessing.get_context("spawn").Process(
        target=api_server.run, args=(port, nodes, pods, changes), daemon=True
    )
    server.start()
    try:
        yield fake_kubeconfig(folder, port)
    finally:
        server.kill()  # else it waits for those who watch
        server.join()


def fake_kubeconfig(folder: Path, port: int) -> Path:
    """The file that leads to a fake API server, which knows nobody."""
    config = folder / "fake.kubeconfig"
    config.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "fake", "users": [],
        "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": ""}}],
    }))  # fmt: skip
    return config


class _Changed(msgspec.Struct):
    annotations: dict[str, str] = {}


async def delays(settings: Settings, seconds: float) -> np.ndarray:
    """Of each change of a pod, how long after it the broker had the first record that says so; what
    is written from now on, for so long. The pod's status may change after that, and be written."""
    consumer = AIOKafkaConsumer(
        **client_options(settings.kafka), group_id=None, isolation_level="read_committed"
    )
    await consumer.start()
    name = PODS.full_name(settings.kafka.topic_prefix)
    places = [TopicPartition(name, p) for p in range(settings.kafka.partitions)]
    consumer.assign(places)
    await consumer.seek_to_end(*places)
    found: dict[tuple[bytes, str], float] = {}
    began, until = time.time(), time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                for record in filter(lambda one: one.value is not None, records):
                    said = msgspec.json.decode(record.value, type=_Changed).annotations
                    at = said.get(api_server.CHANGED_AT)
                    if at and float(at) > began:
                        late = record.timestamp / 1000 - float(at)
                        found.setdefault((record.key, at), late)
    finally:
        await consumer.stop()
    return np.array([*found.values()])


def report(title: str, found: InStep) -> None:
    """A line of the table."""
    spent = found.cost.user_seconds + found.cost.system_seconds
    rate = found.records / found.seconds
    print(f"{title:12}{found.seconds:>8.1f} s{spent:>8.1f} s{found.cost.peak_mib:>10.0f}"
          f"{found.records:>12,}{rate:>10,.0f}", flush=True)  # fmt: skip


def report_delays(found: np.ndarray) -> None:
    if not len(found):
        raise SystemExit("no change has reached the topic")
    p50, p99 = np.percentile(found, [50, 99])
    print(f"{len(found):,} changes: p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, "
          f"longest {found.max() * 1000:.0f} ms", flush=True)  # fmt: skip


HEAD = f"{'':12}{'in step':>10}{'CPU':>10}{'peak MiB':>10}{'records':>12}{'a second':>10}"


def with_fake(given: argparse.Namespace, settings: Settings, folder: Path) -> None:
    """First from empty topics, then again with all that is on them."""
    with fake_api_server(folder, given.nodes, given.fake_pods, given.changes) as config:
        settings = msgspec.structs.replace(settings, kubernetes=_kubernetes(config))
        print(f"{given.fake_pods:,} pods and {given.nodes:,} nodes of a fake API server\n{HEAD}")
        for title in ("first", "again"):
            with watcher(settings, folder / f"{title}.log") as watching:
                report(title, watching.until_in_step())
                if given.changes:
                    report_delays(asyncio.run(delays(settings, given.seconds)))
                now = cost(watching.pid)
                print(f"{'':12}after that {now.resident_mib:.0f} MiB, at most {now.peak_mib:.0f}")


def with_real(given: argparse.Namespace, settings: Settings, folder: Path) -> None:
    """Pods of a real API server."""
    with local_control_plane() as plane:
        for namespace in ("springtide-system", "koordinator-system"):
            plane.kubectl("create", "namespace", namespace)
        settings = msgspec.structs.replace(settings, kubernetes=_kubernetes(plane.kubeconfig()))
        began = time.monotonic()
        asyncio.run(_make(settings.kubernetes, given.nodes, given.real))
        print(f"{given.real:,} pods made in {time.monotonic() - began:.0f} s", file=sys.stderr)
        _until_running(plane)
        print(f"{given.real:,} pods and {given.nodes:,} nodes of a real API server\n{HEAD}")
        for title in ("first", "again"):
            with watcher(settings, folder / f"{title}.log") as watching:
                report(title, watching.until_in_step())
                report_delays(asyncio.run(_change(settings, given)))


async def _make(kubernetes: KubernetesSettings, nodes: int, pods: int) -> None:
    """Nodes that KWOK keeps alive, and pods on them as the fake one has them."""
    server = api_server.FakeApiServer(nodes, pods, 0.0)
    async with open_api(kubernetes, SystemClock()) as api:
        await api.create("/api/v1/namespaces", _named("shop"))
        await api.create("/api/v1/namespaces/shop/serviceaccounts", _named("app"))
        for number in range(nodes):
            body = json.loads(server.node(number))
            body["metadata"] = {key: body["metadata"][key] for key in ("name", "labels")}
            await api.create("/api/v1/nodes", body)
        await _all_of(
            api, "/api/v1/namespaces/shop/pods", (as_new(server.pod(n)) for n in range(pods))
        )


async def _all_of(api: Api, path: str, bodies: Any) -> None:
    rest = iter(bodies)

    async def some() -> None:
        for body in rest:
            await api.create(path, body)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(some())


def as_new(pod: bytes) -> Any:
    """What may be said of a pod that is not there yet."""
    body = json.loads(pod)
    for ours in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "ownerReferences"):
        del body["metadata"][ours]
    del body["status"], body["spec"]["priority"], body["spec"]["volumes"]
    for container in body["spec"]["containers"]:
        del container["volumeMounts"]
    return body


def _until_running(plane: ControlPlane) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    pending = ("get", "pods", "-A", "--field-selector", "status.phase=Pending", "-o", "name")
    while plane.kubectl(*pending):
        if time.monotonic() > deadline:
            raise SystemExit("the pods do not begin to run")
        time.sleep(1.0)


async def _change(settings: Settings, given: argparse.Namespace) -> np.ndarray:
    """Change one pod after the other, and look when it is on the topic."""
    looking = asyncio.create_task(delays(settings, given.seconds))
    server = api_server.FakeApiServer(given.nodes, given.real, 0.0)
    until = time.monotonic() + given.seconds - 2.0
    async with open_api(settings.kubernetes, SystemClock()) as api:
        await asyncio.sleep(1.0)
        while time.monotonic() < until:
            number = int(time.monotonic() * 1000) * 7919 % given.real
            name = json.loads(server.pod(number))["metadata"]["name"]
            said = {api_server.CHANGED_AT: f"{time.time():.6f}"}
            path = f"/api/v1/namespaces/shop/pods/{name}"
            await api.patch(path, {"metadata": {"annotations": said}})
            await asyncio.sleep(1 / given.changes)
    return await looking


def _named(name: str) -> Any:
    return {"metadata": {"name": name}}


def _kubernetes(config: Path) -> KubernetesSettings:
    return KubernetesSettings(kubeconfig=config)


def _settings(kafka: LocalKafka) -> Settings:
    return load_settings(
        None, {}, {"kafka.bootstrap_servers": kafka.bootstrap_servers, "kafka.topic_prefix": PREFIX}
    )


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    one = parser.add_mutually_exclusive_group(required=True)
    one.add_argument("--fake-pods", type=int)
    one.add_argument("--real", type=int)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--changes", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args(arguments)
    if given.nodes is None:
        given.nodes = 10_000 if given.real is None else 200
    return given


def main() -> None:
    given = parsed()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        settings = _settings(stack.enter_context(local_kafka()))
        asyncio.run(apply_topics(settings.kafka))
        try:
            (with_fake if given.real is None else with_real)(given, settings, folder)
        except SystemExit:
            for log in folder.glob("*.log"):
                sys.stderr.write(log.read_text()[-3000:])
            raise


if __name__ == "__main__":
    main()
