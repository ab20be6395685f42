"""The protocol of a feature of the cluster actuator, and what the actuator gives to each feature.

A feature keeps one thing in the cluster equal to the topics. To add one, write a module with a
class that satisfies `Feature`, and add the class to `FEATURES` in `cluster_actuator`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from actuators.cluster.write_queue import WriteQueue
from pipeline.clock import Clock
from pipeline.kube.api_client import Api
from pipeline.processors.placement.plugin_config import Placement
from pipeline.settings import Settings
from pipeline.topics.actions import ActionRecord


@dataclass(frozen=True, slots=True)
class Context:
    """What every feature may use. `placement` is the extender's; `node_uids` has the uid of each
    Node on the API server."""

    api: Api
    queue: WriteQueue
    clock: Clock
    settings: Settings
    placement: Placement
    report: Callable[[ActionRecord], None]
    node_uids: dict[str, str] = field(default_factory=dict)


class Follower(Protocol):
    """Receives the objects of a list-watch."""

    def list_started(self) -> None:
        """A complete list follows."""

    def observed(self, encoded: bytes | msgspec.Raw) -> None:
        """An object as it is now, as JSON."""

    def list_completed(self) -> None:
        """Objects that the list did not contain do not exist."""

    def deleted(self, name: str) -> None:
        """An object was deleted."""


class Watch(NamedTuple):
    """A collection of the API server to follow. A missing custom resource, or a missing right to
    list it, is an error if the watch `is_required`."""

    path: str
    follower: Follower
    only_metadata: bool = False
    is_required: bool = True


class Feature(Protocol):
    """One thing that the cluster actuator writes."""

    @property
    def reads(self) -> Mapping[str, float | None]:
        """Topics by name, with the seconds of their past to read; None for all of it."""
        ...

    @property
    def watches(self) -> Sequence[Watch]:
        """Collections of the API server to follow."""
        ...

    def learn(self, topic: str, node: str, record: Any) -> None:
        """Take a decoded record of a topic in `reads`; None is a tombstone.

        Raises InvalidRecordError if a value is invalid; the actuator counts and drops the record.
        """
        ...

    def start(self) -> None:
        """All topics and lists have been read: what `learn` brings from now on is new."""
        ...

    def decide(self, *, everything: bool) -> None:
        """Queue the writes that are due for nodes that changed, or for all nodes."""
        ...
