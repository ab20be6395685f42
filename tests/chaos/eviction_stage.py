"""Evictors as processes, the pods that they may evict, and plans: what storms share.

Pods hold on to their nodes by a finalizer: an evicted pod leaves when `let_go` says so, and until
then counts as leaving.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pipeline.errors import ApiUnavailableError, ConflictError, NotFoundError
from pipeline.kube.api_client import Api
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import Settings, variable_name
from pipeline.topics.actions import ActionRecord
from pipeline.topics.registry import ACTIONS
from tests.chaos.eviction_evidence import observe, read_records
from tests.chaos.eviction_monitor import Observed, read_limits
from tests.chaos.role_process import RoleProcess
from tests.cluster.objects import Object, write_policy
from tests.processes import until

FINALIZER: Final = "springtide.test/leaving"
_PATHS: Final = {
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
}


def configuration(limits: Mapping[str, Any], caps: Mapping[str, Any]) -> Object:
    """A DeschedulerConfiguration of these arguments of MigrationController and these keys."""
    args = {"evictAllBarePods": True, "skipCheckExpectedReplicas": True, **limits}
    return {
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration", **caps,
        "profiles": [
            {"name": "storm", "pluginConfig": [{"name": "MigrationController", "args": args}]}
        ],
    }  # fmt: skip


def holding(manifest: Object, namespace: str) -> Object:
    """The pod in a namespace; it holds on to its node when it is evicted."""
    manifest["metadata"] |= {"namespace": namespace, "finalizers": [FINALIZER]}
    return manifest


class EvictionStage:
    """Evictors of one configuration and their topics; `since` is when it began (Unix time)."""

    def __init__(
        self, plane: ControlPlane, api: Api, settings: Settings, folder: Path, configured: Object,
        per_minute: float, namespaces: Sequence[str],
    ) -> None:  # fmt: skip
        self.plane, self.api, self.settings, self.folder = plane, api, settings, folder
        self.configuration, self.per_minute = configured, per_minute
        self.namespaces = namespaces
        self.since = time.time()

    async def create(self, *objects: Object) -> None:
        """Create the namespaces, the configuration, and these objects. The service account of a new
        namespace comes later."""
        name = self.settings.kubernetes.descheduler_config_name
        write_policy(self.plane, name, koord_descheduler_config=self.configuration)
        for namespace in self.namespaces:
            with suppress(ConflictError):
                await self.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
            await until(lambda path=path: self._exists(path))
        for manifest in objects:
            namespace = manifest["metadata"].get("namespace", "")
            await self.api.create(_PATHS[manifest["kind"]].format(namespace), manifest)

    async def _exists(self, path: str) -> bool:
        try:
            await self.api.get(path)
        except NotFoundError:
            return False
        return True

    def evictor(self, name: str, kubeconfig: Path, bugs: Sequence[str] = ()) -> RoleProcess:
        """An evictor in mode act, which is not started yet."""
        more = {"evictor.evictions_per_minute": self.per_minute, "evictor.mode": "act"}
        return self.role(name, kubeconfig, bugs, {**more, "evictor.metrics_port": 0})

    def role(
        self, name: str, kubeconfig: Path, bugs: Sequence[str], more: Mapping[str, Any],
        flags: Sequence[str] = (),
    ) -> RoleProcess:  # fmt: skip
        """A role with the topics of the stage and `more` settings, which is not started yet."""
        kafka, kubernetes = self.settings.kafka, self.settings.kubernetes
        variables = {
            "kafka.bootstrap_servers": kafka.bootstrap_servers,
            "kafka.topic_prefix": kafka.topic_prefix, "kafka.partitions": kafka.partitions,
            "kubernetes.kubeconfig": kubeconfig, "kubernetes.namespace": kubernetes.namespace,
            "kubernetes.descheduler_config_name": kubernetes.descheduler_config_name,
            "kubernetes.request_timeout_seconds": kubernetes.request_timeout_seconds, **more,
        }  # fmt: skip
        environment = {variable_name(key): str(value) for key, value in variables.items()}
        return RoleProcess(name, [*flags], environment, self.folder, bugs)

    async def pods(self) -> list[Object]:
        """All pods of the stage."""
        listed = []
        for namespace in self.namespaces:
            listed += (await self.api.get(_PATHS["Pod"].format(namespace)))["items"]
        return listed

    async def actions(self) -> list[ActionRecord]:
        """What the evictors recorded."""
        actions = await read_records(self.settings.kafka, ACTIONS, ActionRecord)
        return [action for action, _ in actions]

    async def observed(self, *, is_loop: bool = False) -> Observed:
        """What the monitor judges: the evictions in the namespaces of this stage."""
        limits = read_limits(self.configuration, self.per_minute)
        observed = await observe(
            self.plane, self.settings.kafka, limits, self.since, is_loop=is_loop
        )
        observed.events = [
            event for event in observed.events if event.object_ref.namespace in self.namespaces
        ]
        return observed

    async def clear(self) -> None:
        """Delete the objects of the stage, with pods that hold on to their nodes."""

        async def are_gone() -> bool:
            with suppress(ApiUnavailableError):  # a storm leaves the API server busy
                for namespace in self.namespaces:
                    for kind in ("Deployment", "StatefulSet", "Pod"):
                        await self.api.delete(_PATHS[kind].format(namespace))
                pods = await self.pods()
                await self.let_go(pods)
                return not pods
            return False

        await until(are_gone, 120)

    async def let_go(self, pods: Iterable[Object]) -> None:
        """Let pods leave their nodes as soon as they are deleted."""
        for metadata in (pod["metadata"] for pod in pods if pod["metadata"].get("finalizers")):
            path = f"{_PATHS['Pod'].format(metadata['namespace'])}/{metadata['name']}"
            with suppress(NotFoundError):
                await self.api.patch(path, {"metadata": {"finalizers": None}})
