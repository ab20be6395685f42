"""Run the demo: each role as a process, over a real broker, on this machine.

Usage comes from real processes in real cgroups; simulated nodes are marked. The demo removes what
it creates. If it is killed, its processes end with it, and the next demo removes its cgroups and
directories.
"""

import asyncio
import json
import math
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from pipeline.clock import Clock, SystemClock
from pipeline.errors import DemoError, KafkaError, KernelError
from pipeline.kafka.client import client_options
from pipeline.local import demo_queries
from pipeline.local import simulated_fleet_process as fleet_process
from pipeline.local.demo_screen import PlacementReport, PodReport, Screen, pod_reports, summarize
from pipeline.local.demo_settings import (
    POLICY_FILE,
    ROLES_CGROUP,
    STALE_AFTER_SECONDS,
    demo_home,
    local_node_name,
    settings_document,
)
from pipeline.local.demo_signals import ignore_signals, interruptible, stop_event
from pipeline.local.demo_suppression import (
    Suppression,
    policy_object,
    read_suppression,
    threshold_percent,
)
from pipeline.local.demo_topics import create_topics
from pipeline.local.demo_workload import (
    PODS,
    CgroupJoiner,
    Workload,
    cpu_count,
    node_object,
    pod_object,
    remove_leftovers,
)
from pipeline.local.local_kafka import LocalKafka, local_kafka
from pipeline.local.port_probe import HOST, free_port
from pipeline.local.role_processes import Role, stop_all
from pipeline.settings import Settings, load_settings
from pipeline.table import Feed, Table
from pipeline.tasks import cancel_tasks
from pipeline.topics.registry import TOPICS

UNKNOWN_NODE: Final = "an-unknown-node"

_FIRST_NODE_SECONDS = 90.0
_ASK_PERIOD_SECONDS = 60.0
_ASK_DEADLINE_SECONDS = 60.0
_MIN_WINDOWS = 3


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Simulated nodes, seconds to run (None: until interrupted), and the directory that logs are
    copied to (None: removed)."""

    fleet: int = 0
    seconds: float | None = None
    keep: Path | None = None


def run_demo(options: DemoOptions, screen: Screen) -> None:
    """Run the demo until its time is over or a signal arrives. Raises `SpringtideError`."""
    for name in remove_leftovers():
        screen.print(f"removed leftovers of a killed demo: {name}")
    with ExitStack() as stack:
        stack.enter_context(interruptible())
        home = stack.enter_context(demo_home(options.keep))
        screen.print("starting a Kafka broker ...")
        kafka = stack.enter_context(local_kafka())
        screen.print(f"Kafka is ready at {kafka.bootstrap_servers}, data in {kafka.data_dir}")
        demo = Demo(options, screen, SystemClock(), home, kafka)
        stack.callback(ignore_signals)
        asyncio.run(demo.run())


class Demo:
    """One run of the demo."""

    def __init__(
        self, options: DemoOptions, screen: Screen, clock: Clock, home: Path, kafka: LocalKafka
    ) -> None:
        self.kafka = kafka
        self.options = options
        self.screen = screen
        self.clock = clock
        self.home = home
        self.node = local_node_name()
        self.settings_file = home / "settings.yaml"
        self.url = f"http://{HOST}:{free_port()}"
        self.workload = _create_workload(home.name, screen)
        document = settings_document(
            kafka.bootstrap_servers,
            home,
            self.node,
            port=int(self.url.rpartition(":")[2]),
            cgroup_parent=home.name if self.workload else "",
            fleet=options.fleet > 0,
        )
        self.settings_file.write_text(yaml.safe_dump(document, sort_keys=False))
        self.settings: Settings = load_settings(self.settings_file, {}, {})
        self.roles: list[Role] = []
        self.started = clock.monotonic()
        self.first_shown: float | None = None
        self.first_asked: float | None = None

    async def run(self) -> None:
        """Run until the time is over or a signal arrives, then stop everything."""
        stop = stop_event()
        table = Table()
        feed = Feed(
            table,
            client=client_options(self.settings.kafka),
            prefix=self.settings.kafka.topic_prefix,
            clock=self.clock,
        )
        feed_task: asyncio.Task[None] | None = None
        try:
            self._start_workload()
            if not await create_topics(self.settings.kafka, self.clock, stop, self._check):
                return
            self.screen.print(f"created {len(TOPICS)} topics with {self.settings.kafka.partitions} "
                            "partitions each")  # fmt: skip
            self._start_roles()
            feed_task = asyncio.create_task(feed.run())
            await self._watch(table, stop)
            await self._finish(table)
        except KafkaError:
            self._check()  # raises the cause if the broker has ended
            raise
        finally:
            self.screen.print("stopping ...")
            if feed_task is not None:
                await cancel_tasks(feed_task)
            await asyncio.to_thread(stop_all, self.roles)
            if self.workload is not None:
                self.workload.close()

    def _start_workload(self) -> None:
        now = self.clock.now()
        pods = []
        if self.workload is not None:
            self.workload.start()
            pods = [pod_object(pod, self.node, now) for pod in PODS]
            self.screen.print(
                f"{len(PODS)} pods run in cgroups below {self.home.name}/kubepods: "
                + ", ".join(pod.name for pod in PODS)
            )
        for name, items in (("nodes", [node_object(self.node)]), ("pods", pods)):
            document = {"apiVersion": "v1", "kind": "List", "items": items}
            (self.home / f"{name}.json").write_text(json.dumps(document, indent=1))
        (self.home / POLICY_FILE).write_text(json.dumps(policy_object(cpu_count()), indent=1))

    def _start_roles(self) -> None:
        joiner = CgroupJoiner()
        if self.workload is not None:
            joiner = self.workload.unweighted_joiner(f"{self.home.name}/{ROLES_CGROUP}")
        command = ("-m", "pipeline.cli.main", "--config", str(self.settings_file))
        for name in ("exporter", "worker", "extender"):
            self._start_role(name, [*command, name], joiner)
        if self.workload is not None:
            self._start_role("node-actuator", [*command, "node-actuator"], joiner)
            self.screen.print(
                f"node actuator in mode act: best-effort pods get what others leave of "
                f"{threshold_percent(cpu_count())}% of {cpu_count()} CPUs"
            )
        if self.options.fleet:
            module = ("-m", "pipeline.local.simulated_fleet_process", str(self.settings_file))
            self._start_role("fleet", [*module, str(self.options.fleet)], joiner)
            self.screen.print(
                f"{self.options.fleet} simulated nodes start {fleet_process.HOURS_BACK:g} h in the "
                f"past and catch up: windows of {fleet_process.HISTORY_WINDOW_SECONDS} s, then of "
                f"{fleet_process.WINDOW_SECONDS} s"
            )
        names = ", ".join(role.log.name for role in self.roles)
        self.screen.print(f"logs in {self.home}: {names}")
        self.screen.print(f"console, in a browser: {self.url}/console")

    def _start_role(self, name: str, argv: list[str], joiner: CgroupJoiner) -> None:
        self.roles.append(Role(name, argv, self.home / f"{name}.log", joiner))

    async def _watch(self, table: Table, stop: asyncio.Event) -> None:
        last_asked = -math.inf
        while not stop.is_set() and self._seconds_left() > 0:
            self._check()
            now = self.clock.monotonic()
            if self.first_shown is None:
                self._await_first_node(table, now)
            suppression = await self._suppression()
            self.screen.show_nodes(table, self.clock.now(), self._status(table), suppression)
            is_due = now - last_asked > _ASK_PERIOD_SECONDS
            if is_due and self._can_ask(table, now) and await demo_queries.is_ready(self.url):
                last_asked = now
                self.first_asked = self.first_asked or now
                self.screen.show_placement(await self._ask(table))
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1.0)

    def _check(self) -> None:
        if self.kafka.pid is None:
            raise DemoError(f"the demo's broker ended; its log ends:\n{self.kafka.log_tail()}")
        for role in self.roles:
            role.check()
        if self.workload is not None and (ended := self.workload.ended()):
            raise DemoError(
                f"the process of {', '.join(ended)} ended",
                hint="check with `dmesg` whether the kernel killed it for lack of memory",
            )

    def _seconds_left(self) -> float:
        if self.options.seconds is None or self.first_asked is None:
            return math.inf
        return self.options.seconds - (self.clock.monotonic() - self.first_asked)

    def _await_first_node(self, table: Table, now: float) -> None:
        if _is_known(table, self.node):
            self.first_shown = now
            self.screen.print(f"first window of {self.node} after {now - self.started:.0f} s")
        elif now - self.started > _FIRST_NODE_SECONDS:
            logs = "\n".join(f"{role.name}:\n{role.tail()}" for role in self.roles)
            raise DemoError(
                f"no window of {self.node} arrived within {_FIRST_NODE_SECONDS:.0f} s; "
                f"the logs end:\n{logs}",
                hint="check this machine with `springtide doctor`, and whether it is overloaded",
            )

    def _can_ask(self, table: Table, now: float) -> bool:
        """Whether the node has peaks, and the fleet has reached the present."""
        state = table.snapshot(self.node).state
        if self.first_shown is None or state is None:
            return False
        if now - self.first_shown > _ASK_DEADLINE_SECONDS:
            return True
        pods_known = state.node_known and state.unknown_pods == 0
        has_windows = state.counters.applied >= _MIN_WINDOWS
        return pods_known and has_windows and len(self._current_fleet(table)) == self.options.fleet

    def _current_fleet(self, table: Table) -> list[str]:
        now = self.clock.now()
        ages = table.ages(table.lookup(list(table)), now)
        return [
            name
            for name, age in zip(table, ages.tolist(), strict=True)
            if name != self.node and age < STALE_AFTER_SECONDS
        ]

    def _status(self, table: Table) -> str:
        running = f"running {self.clock.monotonic() - self.started:.0f} s"
        if self.first_shown is None:
            return f"{running}; waiting for the first window"
        parts = [running]
        if (seconds_left := self._seconds_left()) < math.inf:
            parts.append(f"{max(0.0, seconds_left):.0f} s to go")
        if self.options.fleet:
            current = len(self._current_fleet(table))
            parts.append(f"{current} of {self.options.fleet} simulated nodes up to date")
        return "; ".join(parts)

    async def _ask(self, table: Table) -> PlacementReport:
        names = [name for name in table if _is_known(table, name)]
        names += [] if self.options.fleet else [UNKNOWN_NODE]
        extender = self.settings.extender
        thresholds = {
            "CPU": extender.cpu_threshold_percent,
            "memory": extender.memory_threshold_percent,
        }
        answer = await demo_queries.ask_extender(self.url, names)
        catching_up = self.options.fleet - len(self._current_fleet(table))
        return PlacementReport(
            answer, [self.node], catching_up, self.url, thresholds, await self._pod_reports()
        )

    async def _pod_reports(self) -> list[PodReport]:
        if self.workload is None:
            return []
        prediction = await demo_queries.newest_prediction(self.settings.kafka, self.node)
        if prediction is None:
            return []
        usage = await demo_queries.pod_usage(self.settings.exporter.socket_path, 15)
        return pod_reports(prediction, usage)

    async def _suppression(self) -> Suppression | None:
        if self.workload is None:
            return None
        return await read_suppression(self.workload, self.settings.exporter.socket_path)

    async def _finish(self, table: Table) -> None:
        """Show the last answer and the summary, if the node was shown before."""
        if self.first_shown is None:
            return
        if await demo_queries.is_ready(self.url):
            self.screen.show_placement(await self._ask(table))
        states = [state for name in table if (state := table.snapshot(name).state)]
        lost = await demo_queries.dead_letters(self.settings.kafka)
        seconds = self.clock.monotonic() - self.started
        self.screen.show_summary(summarize(states, dead_letters=lost, seconds=seconds))


def _create_workload(name: str, screen: Screen) -> Workload | None:
    try:
        workload = Workload(name)
    except KernelError as error:
        screen.print(
            f"no demo pods and no node actuator, because cgroups cannot be read: {error.message}"
        )
        return None
    try:
        workload.make_cgroup(f"{name}/{ROLES_CGROUP}")
    except KernelError as error:
        workload.close()  # one controller may allow what the next refuses
        screen.print(f"no demo pods and no node actuator, because they need root: {error.message}")
        screen.print("the node is measured, and the pods of a kubelet as far as they are readable")
        return None
    return workload


def _is_known(table: Table, name: str) -> bool:
    return table.snapshot(name).state is not None
