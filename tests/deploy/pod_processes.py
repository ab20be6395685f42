"""The containers of the chart's pods as processes, where no kubelet runs them.

KWOK takes the pods of a control plane for running as soon as they have a node. For each of them
this starts the container's command with the settings file of its ConfigMap, its variables, and a
token of its service account, and sends SIGTERM when the pod is deleted. Pods of one name follow
each other, as they do on a node. Paths and ports are this machine's: several pods share it.
"""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from pipeline.clock import SystemClock
from pipeline.kube.api_client import Api, open_api
from pipeline.local.control_plane import ControlPlane
from pipeline.local.process_guard import die_with_parent
from pipeline.settings import KubernetesSettings, variable_name
from tests.cluster.objects import service_account_token
from tests.deploy.helm import NAMESPACE
from tests.processes import environment, springtide

_LOOK_SECONDS: Final = 0.5
_TAIL_LINES: Final = 15


class PodProcess:
    """The process of a pod, which ends by `stop`."""

    def __init__(
        self, pod: Any, settings: str, kubeconfig: Path, folder: Path, more: Mapping[str, str]
    ) -> None:
        self.name, self.uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        (container,) = pod["spec"]["containers"]
        self.role = container["name"]
        self.log = folder / f"{self.name}.log"
        file = folder / f"{self.uid}.yaml"
        file.write_text(settings)
        given = {
            each["name"]: each.get("value", self.name)  # a field reference is the pod's name
            for each in container["env"]
        }
        own = {variable_name("kubernetes.kubeconfig"): str(kubeconfig), "SPRINGTIDE_CONFIG": file}
        variables = {key: str(value) for key, value in (given | dict(more) | own).items()}
        program, *arguments = container["command"]
        assert program == "springtide"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                springtide(*arguments), env=environment(**variables), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, preexec_fn=die_with_parent,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Send SIGTERM, once."""
        if self.is_running():
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    def tail(self) -> str:
        """Its name, and the end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join([f"-- {self.name}", *lines[-_TAIL_LINES:]])


class PodProcesses:
    """The processes of the pods of `roles`, by UID; `ended` has those of deleted pods."""

    def __init__(
        self, plane: ControlPlane, folder: Path, roles: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        self.running: dict[str, PodProcess] = {}
        self.ended: list[PodProcess] = []
        self._plane, self._folder, self._roles = plane, folder, roles
        self._variables = variables
        self._stopping: dict[str, PodProcess] = {}

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the pods while the context lasts, then end all processes."""
        kubernetes = KubernetesSettings(kubeconfig=self._plane.kubeconfig())
        async with open_api(kubernetes, SystemClock(), name="kubelet") as api:
            following = asyncio.create_task(self._follow(api))
            try:
                yield
            finally:
                following.cancel()
                results = await asyncio.gather(following, return_exceptions=True)
                for process in (*self.running.values(), *self._stopping.values()):
                    process.kill()
            for error in results:
                if isinstance(error, Exception):
                    raise error

    async def _follow(self, api: Api) -> None:
        while True:
            listed = await api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")
            pods = {pod["metadata"]["uid"]: pod for pod in self._ours(listed["items"])}
            for uid in self.running.keys() - pods.keys():
                self._stopping[uid] = self.running.pop(uid)
                self._stopping[uid].stop()
            for uid, process in [*self._stopping.items()]:
                if not process.is_running():
                    self.ended.append(self._stopping.pop(uid))
            busy = {process.name for process in self._stopping.values()}
            for uid in pods.keys() - self.running.keys():
                if pods[uid]["metadata"]["name"] not in busy:
                    await self._start(api, pods[uid])
            await asyncio.sleep(_LOOK_SECONDS)

    def _ours(self, pods: Sequence[Any]) -> Iterator[Any]:
        for pod in pods:
            is_here = pod["status"]["phase"] == "Running"
            is_ours = pod["metadata"]["labels"]["app.kubernetes.io/component"] in self._roles
            if is_here and is_ours and "deletionTimestamp" not in pod["metadata"]:
                yield pod

    async def _start(self, api: Api, pod: Any) -> None:
        """Start the container with what its volume of settings has now."""
        spec, uid = pod["spec"], pod["metadata"]["uid"]
        (volume,) = (each for each in spec["volumes"] if each["name"] == "settings")
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{volume['configMap']['name']}"
        settings = (await api.get(path))["data"]["springtide.yaml"]
        json.loads(settings)  # a settings file of the chart is JSON
        kubeconfig = self._folder / f"{uid}.kubeconfig"
        await asyncio.to_thread(
            service_account_token, self._plane, spec["serviceAccountName"], kubeconfig
        )
        variables = {
            variable_name("worker.data_dir"): str(self._folder / pod["metadata"]["name"]),
            **self._variables,
        }
        self.running[uid] = PodProcess(pod, settings, kubeconfig, self._folder, variables)

    def tails(self) -> str:
        """The ends of all logs."""
        return "\n".join(process.tail() for process in self.running.values())
