"""Replicas of the webhook behind a Service of this machine, and pods that a profile selects.

As a Service of Kubernetes does, it sends new connections of the API server to replicas that are
ready by probes of /readyz. It tries the others when one refuses.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

from pipeline.clock import SystemClock
from pipeline.errors import KubernetesError
from pipeline.kube.api_client import Api, open_api
from pipeline.local.control_plane import ControlPlane
from pipeline.local.pki import Authority
from pipeline.local.port_probe import HOST, free_port
from pipeline.settings import KubernetesSettings
from tests.chaos.scheduler_requests import PROBE_SECONDS
from tests.cluster.objects import Object, apply, define, pod
from tests.cluster.webhook_objects import WEBHOOK_FILES, configurations, for_app
from tests.crds import FOLDER
from tests.forwarder import Streams, join_streams
from tests.processes import until

APP: Final = "admitted"
SCHEDULER: Final = "nobody"
"""The scheduler of the profile: pods stay pending, and nodes as they are."""
_PAUSE_SECONDS: Final = 0.25
_PODS: Final = "/api/v1/namespaces/default/pods"
_BATCH: Final = {"kubernetes.io/batch-cpu": "100", "kubernetes.io/batch-memory": "64Mi"}
_DEFINITION: Final = FOLDER / "clustercolocationprofiles.yaml"


class WebhookService:
    """The replicas `names`, whose flags are in `flags`, and their Service at `port`."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        authority = Authority(folder, SystemClock())
        pair = authority.server("webhook", [HOST], ["localhost"])
        self.certificate = authority.certificate
        self.port = 0
        self._ports = {name: free_port() for name in names}
        self._ready: list[str] = []
        self._connections = 0
        self.flags = {
            name: [
                "--host", HOST, "--port", str(port), "--mode", "act",
                "--tls-cert-file", str(pair.public), "--tls-key-file", str(pair.private),
            ]
            for name, port in self._ports.items()
        }  # fmt: skip

    async def is_ready(self, name: str) -> bool:
        """Whether the replica answers 200 at /readyz."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session:
            with suppress(aiohttp.ClientError, TimeoutError):
                url = f"https://{HOST}:{self._ports[name]}/readyz"
                async with session.get(url, ssl=context) as answer:
                    return answer.status == 200
        return False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take connections while the context lasts."""
        server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        probing = asyncio.create_task(self._probe())
        try:
            yield
        finally:
            probing.cancel()
            server.close()

    async def _probe(self) -> None:
        while True:
            self._ready = [name for name in self._ports if await self.is_ready(name)]
            await asyncio.sleep(PROBE_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        first = self._connections % max(len(self._ready), 1)
        ready = self._ready[first:] + self._ready[:first]
        for name in (*ready, *self._ports.keys() - {*ready}):
            with suppress(OSError):
                there: Streams = await asyncio.open_connection(HOST, self._ports[name])
                await join_streams((reader, writer), there)
                return
        writer.transport.abort()


class AdmittedPods:
    """`translated` counts pods that came out as Batch pods, `failures` has what else came."""

    def __init__(self, plane: ControlPlane) -> None:
        self.translated = 0
        self.failures: list[str] = []
        self._plane = plane

    @asynccontextmanager
    async def running(self, service: WebhookService) -> AsyncIterator[None]:
        """Create pods while the context lasts, from when the API server asks the webhook on."""
        kinds = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
        kubernetes = KubernetesSettings(kubeconfig=self._plane.kubeconfig())
        try:
            await asyncio.to_thread(self._configure, service)
            async with open_api(kubernetes, SystemClock(), name="pods") as api:
                await until(lambda: self._is_asked(api), 120)
                creating = asyncio.create_task(self._create_all(api))
                try:
                    yield
                finally:
                    creating.cancel()
                    await asyncio.gather(creating, return_exceptions=True)
        finally:
            for command in (
                ("delete", kinds, "springtide-webhook", "--ignore-not-found"),
                ("delete", "-f", str(WEBHOOK_FILES / "priority-classes.yaml")),
                ("delete", "-f", str(_DEFINITION)),
            ):
                await asyncio.to_thread(self._plane.kubectl, *command)

    def _configure(self, service: WebhookService) -> None:
        define(self._plane, str(_DEFINITION))
        self._plane.kubectl("apply", "-f", str(WEBHOOK_FILES / "priority-classes.yaml"))
        profile = for_app(
            APP, qosClass="BE", priorityClassName="koord-batch", schedulerName=SCHEDULER
        )
        apply(self._plane, profile, *configurations(service.certificate, service.port))

    async def _is_asked(self, api: Api) -> bool:
        answer = await api.create(f"{_PODS}?dryRun=All", _manifest(0))
        return _is_translated(answer)

    async def _create_all(self, api: Api) -> None:
        number = 0
        while True:
            number += 1
            try:
                created = await api.create(_PODS, _manifest(number))
            except KubernetesError as error:
                self.failures.append(f"pod {number}: {error}")
            else:
                if _is_translated(created):
                    self.translated += 1
                else:
                    self.failures.append(f"pod {number}: {created['spec']!s:.300}")
            await asyncio.sleep(_PAUSE_SECONDS)


def _manifest(number: int) -> Object:
    return pod(f"{APP}-{number}", labels={"app": APP}, cpu="100m", memory="64Mi")


def _is_translated(created: Any) -> bool:
    spec = created["spec"]
    (container,) = spec["containers"]
    return bool(
        container["resources"] == {"requests": _BATCH, "limits": _BATCH}
        and spec["schedulerName"] == SCHEDULER
        and created["metadata"]["labels"]["koordinator.sh/qosClass"] == "BE"
    )
