"""Run the demo of hot nodes: a real control plane, a real broker, and every role that relieves.

Watcher, worker, extender, planner and evictor run as processes, with the permissions of
`deploy/chart/rbac`. KWOK simulates the kubelets, and this process their exporters.
`hot_node_scenario` has the cluster, `hot_node_story` what has to be observed.
"""

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from pipeline.clock import SystemClock
from pipeline.errors import DemoError, RecordError, SpringtideError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import open_follower, topic_partitions
from pipeline.kube.api_client import Api, open_api
from pipeline.local import hot_node_scenario as scenario
from pipeline.local.build_programs import ensure_programs
from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.local.demo_screen import Screen
from pipeline.local.demo_settings import demo_home
from pipeline.local.demo_signals import ignore_signals, interruptible, stop_event
from pipeline.local.demo_topics import START_SECONDS, create_topics
from pipeline.local.demo_workload import CgroupJoiner
from pipeline.local.hot_node_story import INDENT, RunningPod, Story
from pipeline.local.local_kafka import LocalKafka, local_kafka
from pipeline.local.port_probe import HOST, free_port
from pipeline.local.replayed_usage import PodsByNode, ReplayedUsage
from pipeline.local.role_processes import Role, stop_all
from pipeline.settings import KubernetesSettings, Settings, load_settings
from pipeline.table import Feed, Table
from pipeline.tasks import cancel_tasks
from pipeline.topics.actions import ActionRecord
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.registry import ACTIONS, ALERTS, EVICTION_PLANS, NODE_STATE, NODE_VIEWS, TOPICS

Observed = NodeStateRecord | NodeViewRecord | AlertRecord | EvictionPlanRecord | ActionRecord

_WITH_RBAC: Final = ("watcher", "planner", "evictor")
_RBAC: Final = Path(__file__).parents[2] / "deploy/chart/rbac"
_POLL_SECONDS: Final = 1.0
LEAST_FREE_BYTES: Final = 512 << 20
"""For the logs of etcd, which reserves 64 MB a file, of the broker and of the API server."""
_RECORD_TYPES: Final[Mapping[str, type[Observed]]] = {
    NODE_STATE.name: NodeStateRecord, NODE_VIEWS.name: NodeViewRecord, ALERTS.name: AlertRecord,
    EVICTION_PLANS.name: EvictionPlanRecord, ACTIONS.name: ActionRecord,
}  # fmt: skip
_FOLLOWED: Final = (NODE_STATE, NODE_VIEWS, ALERTS, EVICTION_PLANS, ACTIONS)


class _StoppedError(Exception):
    """A signal arrived."""


def run_hot_node_demo(keep: Path | None, screen: Screen) -> None:
    """Run the demo until everything was seen; copy the logs to `keep`. Raises `DemoError` if
    something was not seen in time, `KeyboardInterrupt` if it was interrupted."""
    with ExitStack() as stack:
        stack.enter_context(interruptible())
        check_free_space()
        screen.print("this demo takes three to four minutes; Ctrl-C ends it")
        # It says what it builds, and for how long.
        kubectl = ensure_programs(report=screen.print)["kubectl"]
        home = stack.enter_context(demo_home(keep))
        screen.print("starting a Kafka broker ...")
        kafka = stack.enter_context(local_kafka())
        screen.print(f"Kafka is ready at {kafka.bootstrap_servers}, data in {kafka.data_dir}")
        screen.print(
            "starting a control plane: etcd, kube-apiserver, kube-controller-manager, "
            "kube-scheduler, and KWOK for the kubelets ..."
        )
        url = f"http://{HOST}:{free_port()}"
        configuration = scenario.scheduler_configuration(url)
        plane = stack.enter_context(local_control_plane(scheduler=configuration))
        screen.print(f"the API server is ready at {plane.server}")
        screen.print(
            "to look on from another shell:\n"
            f"  {Path(sys.executable).with_name('springtide')} alerts --watch "
            f"--bootstrap-servers {kafka.bootstrap_servers}\n"
            f"  {kubectl} --kubeconfig {plane.kubeconfig()} get pods -o wide --watch",
            indent=None,
        )
        stack.enter_context(kept_logs(home, kafka, plane, keep))
        demo = HotNodeDemo(screen, home, kafka, plane, url)
        stack.callback(ignore_signals)
        if asyncio.run(demo.run()) == "interrupted":
            raise KeyboardInterrupt


def check_free_space() -> None:
    """Raise `DemoError` if the directory for temporary files has too little space: without it etcd
    ends with a stack trace."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        raise DemoError(
            f"{folder} has {free >> 20} MiB free; the demo needs {LEAST_FREE_BYTES >> 20}",
            hint="set TMPDIR to a directory with more space",
        )


@contextmanager
def kept_logs(
    home: Path, kafka: LocalKafka, plane: ControlPlane, keep: Path | None
) -> Iterator[None]:
    """Collect the logs of broker and control plane in `home`. After an error keep all logs, in a
    new directory unless `keep` gets them, and say where they are."""

    def logs() -> list[Path]:
        return [kafka.log_file, *plane.folder.glob("*.log")]

    try:
        yield
    except SpringtideError as error:
        folder = keep or Path(tempfile.mkdtemp(prefix="springtide-demo-logs-"))
        for log in [*home.glob("*.log"), *home.glob("*.yaml"), *logs()]:
            shutil.copy(log, folder)
        hint = f"the logs of all parts are in {folder}"
        hint = hint if error.hint is None else f"{error.hint}; {hint}"
        raise DemoError(error.message, hint=hint) from error
    finally:
        for log in logs():
            shutil.copy(log, home)


class HotNodeDemo:
    """One run of the demo. The scheduler of `plane` asks the extender at `url`."""

    def __init__(
        self, screen: Screen, home: Path, kafka: LocalKafka, plane: ControlPlane, url: str
    ) -> None:
        self.screen, self.home, self.kafka, self.plane, self.url = screen, home, kafka, plane, url
        self.clock = SystemClock()
        self.table = Table()
        self.roles: list[Role] = []
        self.pods: Sequence[RunningPod] = ()
        self.views: dict[str, int] = {}  # pods by node
        self.settings_file = home / "settings.yaml"
        document = _settings_document(kafka.bootstrap_servers, home, url)
        self.settings_file.write_text(yaml.safe_dump(document, sort_keys=False))
        self.settings: Settings = load_settings(self.settings_file, {}, {})
        self.started = self.clock.now()

    async def run(self) -> Literal["complete", "interrupted"]:
        """Run until everything was seen or a signal arrives. Raises `DemoError` if something was
        not seen in time."""
        self.stop = stop_event()
        try:
            if not await create_topics(self.settings.kafka, self.clock, self.stop, self._check):
                return "interrupted"
            self.screen.print(f"created {len(TOPICS)} topics")
            async with self._observation():
                await self._prepare()
                await self._tell(Story(self.clock.now(), self.pods))
        except _StoppedError:
            return "interrupted"
        except SpringtideError:
            # Ctrl-C of a terminal also ends a kubectl that runs.
            if self.stop.is_set():
                return "interrupted"
            self._check()  # raises the cause if a part has ended
            raise
        finally:
            self.screen.print("stopping ...")
            await asyncio.to_thread(stop_all, self.roles)
        return "complete"

    @asynccontextmanager
    async def _observation(self) -> AsyncIterator[None]:
        """Follow topics and read the API server until the end of the block."""
        kafka = self.settings.kafka
        feed = Feed(
            self.table, client=client_options(kafka), prefix=kafka.topic_prefix, clock=self.clock
        )
        partitions = topic_partitions(kafka, *_FOLLOWED)
        admin = KubernetesSettings(kubeconfig=self.plane.kubeconfig())
        async with (
            open_follower(client_options(kafka), partitions) as self.follower,
            open_api(admin, self.clock) as self.api,
        ):
            await self.follower.begin()
            feeding = asyncio.create_task(feed.run())
            try:
                yield
            finally:
                await cancel_tasks(feeding)

    # -- before the story

    async def _prepare(self) -> None:
        """Start the roles, let the Deployments run on their nodes, and wait for the worker."""
        await asyncio.to_thread(self._apply_policy)
        self._check_stop()
        self._start_roles()
        for node in scenario.HOT_NODES:
            await self._apply(*scenario.hot_node_objects(node))
            what = f"{scenario.REPLICAS} pods of {node.deployment} to run on {node.name}"
            await self._until(what, partial(self._runs, node))
            # The next Deployment must run on its own node.
            await asyncio.to_thread(self.plane.kubectl, "cordon", node.name)
            allowed = scenario.REPLICAS - node.available
            self.screen.print(
                f"{scenario.REPLICAS} pods of Deployment {node.deployment} run on {node.name}; a "
                f"disruption budget allows {f'{allowed} eviction' if allowed else 'no eviction'}"
            )
        await self._apply(*scenario.other_node_objects())
        names = [node.name for node in scenario.HOT_NODES]
        await asyncio.to_thread(self.plane.kubectl, "uncordon", *names)
        self.screen.print(
            f"{', '.join(scenario.SPARE_NODES)} have room; {scenario.TAINTED_NODE} has a taint"
        )
        await self._until("the worker to know nodes, pods and policy", self._is_known)

    def _apply_policy(self) -> None:
        kubernetes = self.settings.kubernetes
        for namespace in (kubernetes.namespace, kubernetes.config_namespace):
            self.plane.kubectl("create", "namespace", namespace)
        files = [f"--filename={_RBAC / role}.yaml" for role in _WITH_RBAC]
        self._check_stop()
        self.plane.kubectl("apply", *files)
        self._check_stop()
        policy = scenario.config_map(
            kubernetes.descheduler_config_name, kubernetes.config_namespace
        )
        self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(policy))
        self.screen.print(scenario.SHORTENED)

    def _start_roles(self) -> None:
        for role in ("watcher", "worker", "extender", "planner", "evictor"):
            argv = ["-m", "pipeline.cli.main", "--config", str(self.settings_file), role]
            if role in _WITH_RBAC:
                argv += ["--kubeconfig", str(self._service_account(role))]
            self.roles.append(Role(role, argv, self.home / f"{role}.log", CgroupJoiner()))
        names = ", ".join(role.name for role in self.roles)
        self.screen.print(f"started {names}; logs in {self.home}")
        self.screen.print(f"console, in a browser: {self.url}/console")

    def _service_account(self, role: str) -> Path:
        """The kubeconfig of a role, with the permissions of `deploy/chart/rbac`."""
        namespace, every = self.settings.kubernetes.namespace, "system:serviceaccounts"
        user = f"system:serviceaccount:{namespace}:springtide-{role}"
        return self.plane.kubeconfig(user, [every, f"{every}:{namespace}"])

    async def _apply(self, *objects: scenario.Object) -> None:
        self._check_stop()
        document = {"apiVersion": "v1", "kind": "List", "items": [*objects]}
        await asyncio.to_thread(self.plane.kubectl, "apply", "-f", "-", stdin=json.dumps(document))

    async def _until(self, what: str, condition: Callable[[], bool]) -> None:
        """Return when the condition holds. Raises `DemoError` if that takes too long."""
        began_at = self.clock.monotonic()
        while not condition():
            self._check_stop()
            seconds = self.clock.monotonic() - began_at
            if seconds > START_SECONDS:
                raise DemoError(f"waited {seconds:.0f} s for {what}")
            self._show(f"{self.clock.now() - self.started:.0f} s; waiting for {what}")
            await self._observe()

    def _runs(self, node: scenario.HotNode) -> bool:
        return sum(pod.node == node.name for pod in self.pods) == scenario.REPLICAS

    def _is_known(self) -> bool:
        """Whether the worker knows all nodes, their policy, and the pods of the hot ones. The
        extender answers: it was asked about these pods."""
        records = [self.table.snapshot(name).node for name in scenario.NODES]
        have_policy = all(record is not None and record.hot_nodes for record in records)
        pods = [self.views.get(node.name) for node in scenario.HOT_NODES]
        return (
            have_policy
            and self.views.keys() >= {*scenario.NODES}
            and pods == [scenario.REPLICAS] * len(pods)
        )

    # -- the story

    async def _tell(self, story: Story) -> None:
        """Let the load rise, and print what is observed until the story is complete."""
        self.screen.print(
            f"the load of the pods rises now, {scenario.SCALE:g} times that of a machine of "
            "Bitbrains in August 2013; 5 recorded minutes take one window (times are UTC)"
        )
        usage = ReplayedUsage(
            self.settings.kafka, self.clock, self._pods_by_node, scenario.usage,
            windows=scenario.QUIET_STEPS, window_seconds=scenario.WINDOW_SECONDS,
        )  # fmt: skip
        await usage.send(scenario.QUIET_STEPS)
        sending = asyncio.create_task(usage.run())
        try:
            while not story.is_complete:
                await self._observe(story)
                if sending.done():
                    sending.result()
                if problems := [*story.problems, *story.unseen(self.clock.now())]:
                    raise DemoError("; ".join(problems))
                self._show(story.status(self.clock.now()))
        finally:
            await cancel_tasks(sending)
            self.screen.print("\n" + "\n".join(story.summary()), indent=None)
        self.screen.print(
            f"everything was seen: {scenario.RELIEVED.name} was relieved, and nothing was evicted "
            f"from {scenario.PROTECTED.name}\n"
            "next, in your cluster: docs/how-to/relieve-hot-nodes.md"
        )

    def _pods_by_node(self) -> PodsByNode:
        return {
            node: {pod.uid: pod.name for pod in self.pods if pod.node == node}
            for node in scenario.NODES
        }

    async def _observe(self, story: Story | None = None) -> None:
        """Read new records and the pods, and print what the story says about them."""
        self._check_stop()
        self._check()
        polled = await self.follower.poll(timeout_seconds=_POLL_SECONDS)
        # Across topics in the order in which they were written.
        for received in sorted(polled, key=lambda record: record.timestamp):
            name = received.topic.removeprefix(f"{self.settings.kafka.topic_prefix}.")
            if received.value is None:
                continue
            try:
                record: Observed = decode_json(_RECORD_TYPES[name], received.value)
            except RecordError as error:
                self.screen.print(f"{name}: {error.message}")
                continue
            if isinstance(record, NodeViewRecord):
                self.views[record.node] = len(record.pods)
            elif story is not None:
                self._print(_lines(story, record, self.clock.now()))
        self.pods = await _running_pods(self.api)
        if story is not None:
            self._print(story.take_pods(self.pods, self.clock.now()))

    def _print(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.screen.print(line, indent=INDENT)

    def _show(self, status: str) -> None:
        self.screen.show_nodes(self.table, self.clock.now(), status)

    def _check_stop(self) -> None:
        """Raise `_StoppedError` if a signal arrived."""
        if self.stop.is_set():
            raise _StoppedError

    def _check(self) -> None:
        """Raise `DemoError` if a part has ended."""
        if self.kafka.pid is None:
            raise DemoError(f"the demo's broker ended; its log ends:\n{self.kafka.log_tail()}")
        for role in self.roles:
            role.check()
        for component in self.plane.components.values():
            if not component.is_running:
                raise component.error("ended")


def _lines(
    story: Story,
    record: NodeStateRecord | AlertRecord | EvictionPlanRecord | ActionRecord,
    now: float,
) -> Iterator[str]:
    match record:
        case NodeStateRecord():
            return story.take_state(record, now)
        case AlertRecord():
            return story.take_alert(record, now)
        case EvictionPlanRecord():
            return story.take_plan(record, now)
        case ActionRecord():
            return story.take_action(record, now)


async def _running_pods(api: Api) -> list[RunningPod]:
    """The pods of both Deployments that run, and are not being deleted."""
    answer = await api.get("/api/v1/namespaces/default/pods")
    return [
        RunningPod(meta["uid"], meta["name"], meta["labels"]["app"], pod["spec"]["nodeName"])
        for pod, meta in ((pod, pod["metadata"]) for pod in answer["items"])
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in meta
    ]


def _settings_document(bootstrap_servers: str, home: Path, url: str) -> dict[str, Any]:
    """The settings file of all roles, with metrics pages on free ports of 127.0.0.1."""
    page = {"metrics_host": HOST, "metrics_port": 0}
    return {
        "kafka": {"bootstrap_servers": bootstrap_servers},
        "watcher": {**page},
        "worker": {"id": "springtide-demo", "data_dir": str(home / "worker"), **page},
        "extender": {"mode": "act", "host": HOST, "port": int(url.rpartition(":")[2])},
        "planner": {**page},
        "evictor": {"mode": "act", **page},
        "log": {"format": "human"},
    }
