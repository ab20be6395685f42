"""Koordinator's own programs beside ours: built once from its Go module, run as processes."""

import json
import os
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.clock import SystemClock
from pipeline.local.build_programs import KOORDINATOR_SOURCES, ensure_koordinator
from pipeline.local.control_plane import ControlPlane
from pipeline.local.go_toolchain import find_go
from pipeline.local.port_probe import free_port
from pipeline.local.process_guard import die_with_parent
from pipeline.local.replayed_usage import PodUsage, ReplayedUsage
from pipeline.settings import Settings
from tests.cluster.exporters import WINDOW_SECONDS, running_pods
from tests.cluster.objects import Object, define, items
from tests.processes import until

MODULE = "github.com/koordinator-sh/koordinator"
CONFIG_VERSION = "kubescheduler.config.k8s.io/v1"


def module() -> dict[str, str]:
    """Version and directory of the module that the programs are built from."""
    completed = subprocess.run(
        [find_go().path, "mod", "download", "-json", MODULE],
        cwd=KOORDINATOR_SOURCES, env=os.environ | {"GOWORK": "off", "GOTOOLCHAIN": "local"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answer: dict[str, str] = json.loads(completed.stdout)
    return answer


def prepare(plane: ControlPlane, name: str) -> None:
    """Build a program if it is missing, and define Koordinator's custom resources, as its own
    release does."""
    ensure_koordinator(name)
    define(plane, str(Path(module()["Dir"]) / "config/crd/bases"))


def exporters(
    plane: ControlPlane, settings: Settings, windows: int, names: Collection[str], usage: PodUsage
) -> ReplayedUsage:
    """The exporters of some nodes; the last of `windows` windows ended just now."""

    def find_pods() -> dict[str, dict[str, str]]:
        return {name: pods for name, pods in running_pods(plane).items() if name in names}

    return ReplayedUsage(
        settings.kafka, SystemClock(), find_pods, usage,
        windows=windows, window_seconds=WINDOW_SECONDS,
    )  # fmt: skip


class Program:
    """A running program, and its log."""

    def __init__(self, name: str, log: Path, *flags: str, **environment: str) -> None:
        self.log = log
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [ensure_koordinator(name), "--v=4", *flags], stdout=output, stderr=output,
                env=os.environ | environment, preexec_fn=die_with_parent,
            )  # fmt: skip

    async def logs(self, text: str) -> None:
        """Return when the log has the text."""
        await until(lambda: text in self.log.read_text(), 120, self.tail)

    def tail(self) -> str:
        return "\n".join(self.log.read_text().splitlines()[-25:])

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def running(name: str, *flags: str, **environment: str) -> Iterator[Program]:
    """Run a program; leaving the context ends it."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
        program = Program(name, Path(folder) / "log", *flags, **environment)
        try:
            yield program
        finally:
            program.close()


def profile(name: str, args: Object) -> Object:
    """A scheduler's profile in which LoadAwareScheduling alone decides about usage, and requests
    decide nothing."""
    enabled = {"enabled": [{"name": "LoadAwareScheduling"}]}
    versioned = {"apiVersion": CONFIG_VERSION, "kind": "LoadAwareSchedulingArgs", **args}
    return {
        "schedulerName": name,
        "plugins": {
            "filter": enabled | {"disabled": [{"name": "NodeResourcesFit"}]},
            "score": enabled, "reserve": enabled,
        },
        "pluginConfig": [{"name": "LoadAwareScheduling", "args": versioned}],
    }  # fmt: skip


@contextmanager
def koord_scheduler(
    plane: ControlPlane, folder: Path, profiles: Sequence[Object]
) -> Iterator[Program]:
    """koord-scheduler with these profiles."""
    path = folder / "koord-scheduler.yaml"
    tree: dict[str, Any] = {
        "apiVersion": CONFIG_VERSION, "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(plane.kubeconfig())},
        "profiles": list(profiles),
    }  # fmt: skip
    path.write_text(json.dumps(tree))
    flags = (f"--config={path}", "--secure-port=0", "--authentication-skip-lookup=true")
    with running("koord-scheduler", *flags) as program:
        yield program


@contextmanager
def koord_manager(plane: ControlPlane, config_name: str) -> Iterator[Program]:
    """koord-manager with the controller that writes Mid and Batch to Nodes, by this ConfigMap."""
    flags = (
        "--controllers=noderesource", "--noderesource-plugins=BatchResource,MidResource",
        "--feature-gates=WebhookFramework=false", "--enable-leader-election=false",
        "--enable-pprof=false", "--metrics-addr=0",
        f"--health-probe-addr=127.0.0.1:{free_port()}", f"--slo-config-name={config_name}",
    )  # fmt: skip
    with running("koord-manager", *flags, KUBECONFIG=str(plane.kubeconfig())) as program:
        yield program


def verdicts(plane: ControlPlane, names: Sequence[str]) -> dict[str, str] | None:
    """What the scheduler decided about pods: empty if it bound a pod, else the reason; None while
    it has not decided about all of them."""
    pods = {item["metadata"]["name"]: item for item in items(plane, "pods")}
    decided = {}
    for name in names:
        pod = pods.get(name, {})
        if pod.get("spec", {}).get("nodeName"):
            decided[name] = ""
            continue
        conditions = pod.get("status", {}).get("conditions") or ()
        reasons = [c["message"] for c in conditions if c.get("reason") == "Unschedulable"]
        if not reasons:
            return None
        decided[name] = reasons[0]
    return decided
