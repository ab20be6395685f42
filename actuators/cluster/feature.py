"""Base class of the cluster actuator's features, and the context that each feature gets.

A feature keeps one kind of data in the cluster equal to the topics. To add one, write a module with
a subclass of `Feature` (of `NodeMetadataFeature` for annotations and labels), and add the class to
`FEATURES` in `cluster_actuator`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from actuators.cluster.write_queue import WriteQueue
from pipeline.clock import Clock
from pipeline.kube.api_client import Api
from pipeline.settings import Settings
from pipeline.topics.actions import ActionRecord
from pipeline.topics.registry import Topic
from pipeline.tracing import Received


@dataclass(frozen=True, slots=True)
class Context:
    """Dependencies of every feature. `node_uids` has the uid of each Node on the API server,
    `traces` the newest resources of each node that are traced."""

    api: Api
    queue: WriteQueue
    clock: Clock
    settings: Settings
    report: Callable[[ActionRecord], None]
    node_uids: dict[str, str] = field(default_factory=dict)
    traces: dict[str, Received] = field(default_factory=dict)


class Follower(Protocol):
    """Receives the objects of a list-watch."""

    def list_started(self) -> None:
        """Begin a complete list: `observed` is called for each of its objects."""

    def observed(self, encoded: bytes | msgspec.Raw) -> None:
        """Take the present state of an object, as JSON."""

    def list_completed(self) -> None:
        """End a complete list: drop the objects that it did not contain."""

    def deleted(self, name: str) -> None:
        """Drop a deleted object."""


class Watch(NamedTuple):
    """A collection of the API server to follow. A missing custom resource, or a missing right to
    list it, is an error if the watch `is_required`. Equal watches share one list-watch."""

    path: str
    only_metadata: bool = False
    is_required: bool = True


NODES_WATCH = Watch("/api/v1/nodes")

Topics = Mapping[Topic, float | None]
"""Topics with the seconds of their past to read; None: all of it."""


class Feature:
    """A kind of data that the cluster actuator writes to the API server. While the feature is off
    it removes what it wrote."""

    name: ClassVar[str]
    """The feature in the write queue, in metrics and in the key of its switch."""
    modes: ClassVar[Collection[str]] = ("act",)
    """Values of `actuator.mode` in which the feature is on."""
    has_switch: ClassVar[bool] = False
    """Whether `actuator.<name>` must be true as well."""
    annotations: ClassVar[Collection[str]] = ()
    """The annotations of Nodes that the feature owns."""
    labels: ClassVar[Collection[str]] = ()
    """The labels of Nodes that the feature owns."""
    topics: ClassVar[Topics] = {}
    """Topics that `learn` needs while the feature is on."""

    def __init__(self, context: Context) -> None:
        actuator = context.settings.actuator
        is_enabled = not self.has_switch or bool(getattr(actuator, self.name))
        self.is_on = is_enabled and actuator.mode in self.modes
        self._api = context.api
        self._queue = context.queue
        self._clock = context.clock

    @property
    def watches(self) -> Mapping[Watch, Follower]:
        """Collections of the API server to follow."""
        return {}

    def learn(self, topic: Topic, node: str, record: Any) -> None:
        """Take a decoded record of one of `topics`; None is a tombstone. Raises InvalidRecordError
        if a value is invalid; the actuator counts and drops the record."""

    def start(self) -> None:
        """Begin to act: all topics and lists have been read, and further records are new."""

    def decide(self, *, everything: bool) -> None:
        """Queue the writes of nodes that changed, or with `everything` of all nodes: a write may
        also become due by time alone."""
