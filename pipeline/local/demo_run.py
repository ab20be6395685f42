"""The demo: every role of Springtide as a process of its own, over a real broker, on this machine.

Owes the rest: that what is shown is real (real cgroups, real processes, the real protocol), that
what is not is called simulated, and that nothing stays when it ends, however it ends. A demo that
is killed takes its processes with it; its cgroups and folders are removed by the next one.
"""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from pipeline.clock import Clock, SystemClock
from pipeline.errors import DemoError, KernelError
from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local import demo_queries
from pipeline.local import simulated_fleet_process as fleet_process
from pipeline.local.demo_screen import Asked, PodLine, Screen, pods_shown, summary_of
from pipeline.local.demo_stage import (
    ROLES_CGROUP,
    STALE_AFTER_SECONDS,
    demo_home,
    own_node_name,
    settings_document,
)
from pipeline.local.demo_workload import (
    PODS,
    Joiner,
    Workload,
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

UNKNOWN_NODE: Final = "a-node-that-nobody-knows"

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FIRST_NODE_SECONDS = 90.0
_ASK_EVERY_SECONDS = 60.0
_ASK_AT_LAST_SECONDS = 60.0
_WINDOWS_BEFORE_ASKING = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for: simulated nodes, seconds to run (None: until interrupted), and where
    logs are kept (None: nowhere)."""

    fleet: int = 0
    seconds: float | None = None
    keep: Path | None = None


def run_demo(plan: Plan, screen: Screen, clock: Clock | None = None) -> None:
    """Run it until the plan's time is over or a signal comes. Raises `SpringtideError`."""
    for name in remove_leftovers():
        screen.say(f"removed what a killed demo had left: {name}")
    with ExitStack() as stack:
        stack.enter_context(_interruptible())
        home = stack.enter_context(demo_home(plan.keep))
        screen.say("starting a Kafka broker of its own ...")
        kafka = stack.enter_context(local_kafka())
        screen.say(f"Kafka is ready at {kafka.bootstrap_servers}, data in {kafka.data_dir}")
        demo = Demo(plan, screen, clock or SystemClock(), home, kafka)
        stack.callback(_be_calm)
        asyncio.run(demo.run())


@contextmanager
def _interruptible() -> Iterator[None]:
    """Every way of asking it to end is Ctrl-C."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _be_calm() -> None:
    # What follows is tidying up, which takes seconds: a second Ctrl-C must not leave half of it.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class Demo:
    """One run, from the topics to the last answer."""

    def __init__(
        self, plan: Plan, screen: Screen, clock: Clock, home: Path, kafka: LocalKafka
    ) -> None:
        self.kafka = kafka
        self.plan = plan
        self.screen = screen
        self.clock = clock
        self.home = home
        self.node = own_node_name()
        self.settings_file = home / "settings.yaml"
        self.url = f"http://{HOST}:{free_port()}"
        self.workload = _workload(home.name, screen)
        written = settings_document(
            kafka.bootstrap_servers,
            home,
            self.node,
            port=int(self.url.rpartition(":")[2]),
            cgroup_parent=home.name if self.workload else "",
            fleet=plan.fleet > 0,
        )
        self.settings_file.write_text(yaml.safe_dump(written, sort_keys=False))
        self.settings: Settings = load_settings(self.settings_file, {}, {})
        self.roles: list[Role] = []
        self.began = clock.monotonic()
        self.first_shown: float | None = None
        self.first_asked: float | None = None

    async def run(self) -> None:
        """All of it, and the tidying up."""
        stop = asyncio.Event()
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        table = Table()
        feed = Feed(
            table,
            client=client_options(self.settings.kafka),
            prefix=self.settings.kafka.topic_prefix,
            clock=self.clock,
        )
        feeding: asyncio.Task[None] | None = None
        try:
            self._start_workload()
            await apply_topics(self.settings.kafka)
            self.screen.say(f"made {len(TOPICS)} topics with {self.settings.kafka.partitions} "
                            "partitions each")  # fmt: skip
            self._start_roles()
            feeding = asyncio.create_task(feed.run())
            await self._watch(table, stop)
            await self._end(table)
        finally:
            self.screen.say("stopping ...")
            if feeding is not None:
                await cancel_tasks(feeding)
            await asyncio.to_thread(stop_all, self.roles)
            if self.workload is not None:
                self.workload.close()

    def _start_workload(self) -> None:
        now = self.clock.now()
        pods = []
        if self.workload is not None:
            self.workload.start()
            pods = [pod_object(pod, self.node, now) for pod in PODS]
            self.screen.say(
                f"{len(PODS)} pods run in cgroups of their own below {self.home.name}/kubepods: "
                + ", ".join(pod.name for pod in PODS)
            )
        for name, items in (("nodes", [node_object(self.node)]), ("pods", pods)):
            document = {"apiVersion": "v1", "kind": "List", "items": items}
            (self.home / f"{name}.json").write_text(json.dumps(document, indent=1))

    def _start_roles(self) -> None:
        joiner = Joiner()
        if self.workload is not None:
            joiner = self.workload.measured(f"{self.home.name}/{ROLES_CGROUP}")
        command = ("-m", "pipeline.cli.main", "--config", str(self.settings_file))
        for name in ("exporter", "worker", "extender"):
            self._start_role(name, [*command, name], joiner)
        if self.plan.fleet:
            module = ("-m", "pipeline.local.simulated_fleet_process", str(self.settings_file))
            self._start_role("fleet", [*module, str(self.plan.fleet)], joiner)
            self.screen.say(
                f"{self.plan.fleet} simulated nodes start {fleet_process.HOURS_BACK:g} h ago and "
                f"run fast until now: windows of {fleet_process.HISTORY_WINDOW_SECONDS} s, then of "
                f"{fleet_process.WINDOW_SECONDS} s"
            )
        names = ", ".join(role.log.name for role in self.roles)
        self.screen.say(f"logs in {self.home}: {names}")

    def _start_role(self, name: str, argv: list[str], joiner: Joiner) -> None:
        self.roles.append(Role(name, argv, self.home / f"{name}.log", joiner))

    async def _watch(self, table: Table, stop: asyncio.Event) -> None:
        asked_at: float | None = None
        while not stop.is_set() and not self._is_over():
            self._check()
            now = self.clock.monotonic()
            if self.first_shown is None:
                self._await_first_node(table, now)
            self.screen.show(table, self.clock.now(), self._status(table))
            due = asked_at is None or now - asked_at > _ASK_EVERY_SECONDS
            if due and self._may_ask(table, now) and await demo_queries.is_ready(self.url):
                asked_at = now
                self.first_asked = self.first_asked or now
                self.screen.asked(await self._ask(table))
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
                hint="did the kernel kill it for want of memory? `dmesg` says",
            )

    def _is_over(self) -> bool:
        left = self._seconds_left()
        return left is not None and left <= 0

    def _seconds_left(self) -> float | None:
        if self.plan.seconds is None or self.first_asked is None:
            return None
        return self.plan.seconds - (self.clock.monotonic() - self.first_asked)

    def _await_first_node(self, table: Table, now: float) -> None:
        if _is_known(table, self.node):
            self.first_shown = now
            self.screen.say(f"first window of {self.node} after {now - self.began:.0f} s")
        elif now - self.began > _FIRST_NODE_SECONDS:
            logs = "\n".join(f"{role.name}:\n{role.tail()}" for role in self.roles)
            raise DemoError(
                f"no window of {self.node} arrived within {_FIRST_NODE_SECONDS:.0f} s; "
                f"the logs end:\n{logs}",
                hint="`springtide doctor` looks at this machine; is it very busy?",
            )

    def _may_ask(self, table: Table, now: float) -> bool:
        """Whether an answer says something: the node has peaks, and the fleet is in the present."""
        state = table.snapshot(self.node).state
        if self.first_shown is None or state is None:
            return False
        if now - self.first_shown > _ASK_AT_LAST_SECONDS:
            return True
        knows = state.node_known and state.unknown_pods == 0
        fed = state.counters.applied >= _WINDOWS_BEFORE_ASKING
        return knows and fed and len(self._fleet_now(table)) == self.plan.fleet

    def _fleet_now(self, table: Table) -> list[str]:
        now = self.clock.now()
        ages = table.ages(table.lookup(list(table)), now)
        return [
            name
            for name, age in zip(table, ages.tolist(), strict=True)
            if name != self.node and age < STALE_AFTER_SECONDS
        ]

    def _status(self, table: Table) -> str:
        running = f"running {self.clock.monotonic() - self.began:.0f} s"
        if self.first_shown is None:
            return f"{running}; waiting for the first window"
        parts = [running]
        if (left := self._seconds_left()) is not None:
            parts.append(f"{max(0.0, left):.0f} s to go")
        if self.plan.fleet:
            parts.append(
                f"{len(self._fleet_now(table))} of {self.plan.fleet} simulated nodes in the present"
            )
        return "; ".join(parts)

    async def _ask(self, table: Table) -> Asked:
        names = [name for name in table if _is_known(table, name)]
        names += [] if self.plan.fleet else [UNKNOWN_NODE]
        extender = self.settings.extender
        thresholds = {
            "CPU": extender.cpu_threshold_percent,
            "memory": extender.memory_threshold_percent,
        }
        answer = await demo_queries.ask_extender(self.url, names)
        late = self.plan.fleet - len(self._fleet_now(table))
        return Asked(answer, [self.node], late, self.url, thresholds, await self._pods())

    async def _pods(self) -> list[PodLine]:
        if self.workload is None:
            return []
        prediction = await demo_queries.newest_prediction(self.settings.kafka, self.node)
        if prediction is None:
            return []
        usage = await demo_queries.pod_usage(self.settings.exporter.socket_path, 15)
        return pods_shown(prediction, usage)

    async def _end(self, table: Table) -> None:
        """The last answer and the summary; when it was interrupted early there is little to say."""
        if self.first_shown is None:
            return
        if await demo_queries.is_ready(self.url):
            self.screen.asked(await self._ask(table))
        states = [state for name in table if (state := table.snapshot(name).state)]
        lost = await demo_queries.dead_letters(self.settings.kafka)
        seconds = self.clock.monotonic() - self.began
        self.screen.ended(summary_of(states, dead_letters=lost, seconds=seconds))


def _workload(name: str, screen: Screen) -> Workload | None:
    try:
        workload = Workload(name)
    except KernelError as error:
        screen.say(f"no pods of its own, for want of cgroups: {error.message}")
        return None
    try:
        workload.make(f"{name}/{ROLES_CGROUP}")
    except KernelError as error:
        workload.close()  # one controller may have allowed what the next refused
        screen.say(f"no pods of its own, which needs root: {error.message}")
        screen.say(
            "the node is measured all the same, and a kubelet's pods as far as they are readable"
        )
        return None
    return workload


def _is_known(table: Table, name: str) -> bool:
    return table.snapshot(name).state is not None
