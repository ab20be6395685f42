"""Follow what the webhook decides by: profiles, PriorityClasses and the labels of namespaces."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from pipeline.errors import (
    InvalidPolicyError,
    InvalidRecordError,
    KubernetesError,
    NotFoundError,
)
from pipeline.kafka.refused_records import refuse
from pipeline.kube.api_client import METADATA_OF_ONE, Api
from pipeline.kube.event_reporter import EventReporter
from pipeline.kube.list_watch import Began, Changed, Complete, Event, Page, follow
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.processors.admission.colocation_profile import (
    API_VERSION,
    NAME,
    PATH,
    Profile,
    ProfileHead,
    profile_head,
    read_profile,
)
from pipeline.processors.admission.pod_schema import PodSchema
from pipeline.processors.admission.profile_application import Cluster, PriorityClass
from pipeline.tasks import run_all
from pipeline.webhook import limits

PROFILES: Final = gauge("webhook_profiles", "ClusterColocationProfiles, by validity.", ["validity"])

_NAMESPACES: Final = "/api/v1/namespaces"
_PRIORITY_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
_SCHEMA: Final = "/openapi/v3/api/v1"

log = get_logger(__name__)

ObjectT = TypeVar("ObjectT")
StructT = TypeVar("StructT", bound=msgspec.Struct)


class _Metadata(msgspec.Struct):
    name: str
    labels: dict[str, str] | None = None


class _Named(msgspec.Struct):
    metadata: _Metadata


class _PriorityClass(msgspec.Struct, rename="camel"):
    metadata: _Metadata
    value: int
    preemption_policy: str | None = None


class _KnownObjects(Generic[ObjectT]):
    """The objects of one kind by name, kept equal to a list-watch. `read` returns name and content
    of an object, and raises `InvalidRecordError` for an invalid one."""

    def __init__(
        self, kind: str, read: Callable[[bytes | msgspec.Raw], tuple[str, ObjectT]]
    ) -> None:
        self._kind, self._read = kind, read
        self._listed: set[str] | None = None
        self.by_name: dict[str, ObjectT] = {}
        self.is_read = False

    def deliver(self, event: Event) -> None:
        match event:
            case Began():
                self._listed = set()
            case Page(objects):
                for encoded in objects:
                    self._take(encoded)
            case Complete():
                for name in self.by_name.keys() - (self._listed or set()):
                    del self.by_name[name]
                self._listed, self.is_read = None, True
            case Changed(encoded, is_deleted):
                self._take(encoded, is_deleted=is_deleted)

    def _take(self, encoded: msgspec.Raw, *, is_deleted: bool = False) -> None:
        try:
            name, content = self._read(encoded)
        except InvalidRecordError as error:
            refuse(self._kind, error)
            return
        if is_deleted:
            self.by_name.pop(name, None)
            return
        self.by_name[name] = content
        if self._listed is not None:
            self._listed.add(name)


class _KnownProfile(NamedTuple):
    """A profile, None if it is invalid."""

    head: ProfileHead
    profile: Profile | None


class ClusterObjects:
    """Profiles and what they refer to, as the API server has them. While it does not answer, they
    stay as they were."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._events = EventReporter(api, "springtide-webhook")
        self._profiles = _KnownObjects(NAME, self._profile)
        self._classes = _KnownObjects("PriorityClass", _priority_class)
        self._namespaces = _KnownObjects("Namespace", _namespace)
        self._reported: dict[str, tuple[ProfileHead, set[str]]] = {}
        self._schema: PodSchema | None = None
        self._schema_asked = False

    @property
    def is_read(self) -> bool:
        """Whether the state of the cluster at the start is known."""
        kinds = (self._profiles, self._classes, self._namespaces)
        return self._schema_asked and all(kind.is_read for kind in kinds)

    @property
    def profiles(self) -> list[Profile]:
        """The valid profiles."""
        known = self._profiles.by_name.values()
        return [each.profile for each in known if each.profile is not None]

    async def cluster(self, namespace: str) -> Cluster:
        """What profiles refer to. A namespace that the watch has not shown yet is asked for."""
        labels = self._namespaces.by_name
        if namespace not in labels and any(p.spec.namespace_selector for p in self.profiles):
            labels = {**labels, **await self._asked_namespace(namespace)}
        return Cluster(self._classes.by_name, labels, self._schema)

    def report(self, head: ProfileHead, reason: str) -> None:
        """Report why a profile is not applied, in the log and in an Event; each reason once, and at
        most `MOST_REASONS` for each version of a profile: some name what only one pod has."""
        known, reasons = self._reported.get(head.name, (head, set[str]()))
        if known != head:
            reasons = set()
        if reason in reasons or len(reasons) >= limits.MOST_REASONS:
            return
        self._reported[head.name] = head, reasons | {reason}
        log.warning("profile not applied", profile=head.name, why=reason)
        about = {"apiVersion": API_VERSION, "metadata": {"name": head.name, "uid": head.uid}}
        self._events.warn_soon(about, NAME, "ProfileNotApplied", reason)

    def report_by_name(self, name: str, reason: str) -> None:
        """Do the same for a profile that may be gone meanwhile."""
        if (known := self._profiles.by_name.get(name)) is not None:
            self.report(known.head, reason)

    async def run(self) -> None:
        """Follow everything, until cancelled. Raises `ApiRefusedError` without the rights."""
        await run_all(
            [
                self._follow_profiles(),
                self._follow(_PRIORITY_CLASSES, self._classes),
                self._follow(_NAMESPACES, self._namespaces, only_metadata=True),
                self._read_schema(),
            ]
        )

    async def _follow(
        self, path: str, objects: _KnownObjects[Any], *, only_metadata: bool = False
    ) -> None:
        async with aclosing(
            follow(self._api, path, only_metadata=only_metadata, was_allowed=objects.is_read)
        ) as events:
            async for event in events:
                objects.deliver(event)
                if objects is self._profiles:
                    self._count_profiles()

    async def _follow_profiles(self) -> None:
        """Follow profiles; while the cluster does not have their definition, there are none."""
        while True:
            try:
                await self._follow(PATH, self._profiles)
            except NotFoundError:
                if not self._profiles.is_read:
                    log.warning("no definition of profiles: apply deploy/chart/crds", kind=NAME)
                self._profiles.is_read = True
            await self._api.clock.sleep(limits.RETRY_SECONDS)

    async def _read_schema(self) -> None:
        """Read the schema of pods once. Without it patches of profiles are not applied."""
        while self._schema is None:
            try:
                self._schema = PodSchema(await self._api.get(_SCHEMA))
            except (KubernetesError, InvalidPolicyError) as error:
                log.warning("schema of pods not read; patches are not applied", why=error.message)
                self._schema_asked = True
                await self._api.clock.sleep(limits.RETRY_SECONDS)
        self._schema_asked = True

    async def _asked_namespace(self, name: str) -> dict[str, dict[str, str]]:
        try:
            async with asyncio.timeout(limits.NAMESPACE_SECONDS):
                found = await self._api.request(
                    "GET", f"{_NAMESPACES}/{name}", accept=METADATA_OF_ONE
                )
            return dict([_namespace(found)])
        except (KubernetesError, InvalidRecordError, TimeoutError) as error:
            log.warning("namespace not read", namespace=name, why=str(error))
            return {}

    def _profile(self, encoded: bytes | msgspec.Raw) -> tuple[str, _KnownProfile]:
        try:
            head = profile_head(encoded)
        except InvalidPolicyError as error:
            raise InvalidRecordError(error.message) from error
        try:
            return head.name, _KnownProfile(head, read_profile(encoded))
        except InvalidPolicyError as error:
            self.report(head, error.message)
            return head.name, _KnownProfile(head, None)

    def _count_profiles(self) -> None:
        known = self._profiles.by_name
        valid = len(self.profiles)
        PROFILES.labels("valid").set(valid)
        PROFILES.labels("invalid").set(len(known) - valid)
        for name in self._reported.keys() - known.keys():
            del self._reported[name]


def _priority_class(encoded: bytes | msgspec.Raw) -> tuple[str, PriorityClass]:
    found = _decoded(encoded, _PriorityClass, "PriorityClass")
    policy = found.preemption_policy or "PreemptLowerPriority"
    return found.metadata.name, PriorityClass(found.value, policy)


def _namespace(encoded: bytes | msgspec.Raw) -> tuple[str, dict[str, str]]:
    metadata = _decoded(encoded, _Named, "Namespace").metadata
    return metadata.name, metadata.labels or {}


def _decoded(encoded: bytes | msgspec.Raw, kind: type[StructT], name: str) -> StructT:
    try:
        return msgspec.json.decode(encoded, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRecordError(f"not a {name}: {error}") from error
