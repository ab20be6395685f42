"""Create the topics of the registry on the broker, and report drift.

`check_topics` reports differences, `apply_topics` creates missing topics and corrects their
configuration. Neither changes the number of partitions or replicas: with another number of
partitions a node's records would be in another partition, which needs new topics below another
prefix. No role creates a topic that it misses, because the operator decides where data may go.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from aiokafka import TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from pipeline.errors import KafkaError, PartitionCountError, TopicDriftError
from pipeline.kafka.client import client_options, translated_errors
from pipeline.settings import KafkaSettings
from pipeline.tasks import run_within
from pipeline.topics.registry import SAMPLES, TOPICS, Topic

CONNECT_SECONDS: Final = 10.0
"""Time-out of the first connection."""

_REQUEST_SECONDS = 30.0
_VISIBLE_SECONDS = 20.0
_NOT_YET = (
    errors.GroupCoordinatorNotAvailableError,
    errors.GroupLoadInProgressError,
    errors.NotCoordinatorForGroupError,
)
_COORDINATOR_TRIES = 40
COORDINATOR_SECONDS = 0.5
_SET_ON_TOPIC = 1  # config_source of DescribeConfigs: set on the topic itself, no default

_RECREATE: Final = "delete the topic and run `springtide topics apply`"

Kind = Literal["missing", "config", "partitions", "replication"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic on the broker. `replication` is the smallest of its partitions; `config` is the
    configuration in force, `own_config` the part that is set on the topic itself."""

    partitions: int
    replication: int
    config: Mapping[str, str] = field(default_factory=dict)
    own_config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A difference between a topic on the broker and its declaration; `is_fixed`: its number of
    partitions does not follow the setting."""

    topic: str
    kind: Kind
    wanted: str
    found: str | None = None
    key: str | None = None
    is_fixed: bool = False

    @property
    def mendable(self) -> bool:
        """Whether `apply_topics` corrects it."""
        return self.kind in ("missing", "config")

    @property
    def partitions_remedy(self) -> str:
        """What to do about a wrong number of partitions."""
        if self.is_fixed:
            return _RECREATE
        return (
            f"set kafka.partitions (--partitions) to {self.found}: their number is never changed; "
            "for another one create topics with another kafka.topic_prefix"
        )

    def __str__(self) -> str:
        match self.kind:
            case "missing":
                return f"{self.topic} is missing"
            case "config":
                found = "not set" if self.found is None else self.found
                return f"{self.topic}: {self.key} is {found}, not {self.wanted}"
            case "partitions":
                remedy = _RECREATE if self.is_fixed else "set kafka.partitions to this number"
                return (
                    f"{self.topic} has {self.found} partitions, not {self.wanted}: never changed "
                    f"in place; {remedy}, or create new topics with another kafka.topic_prefix"
                )
            case "replication":
                return (
                    f"{self.topic} has {self.found} replicas, not {self.wanted}: "
                    "reassign its partitions with Kafka's own tools, or set "
                    "kafka.replication_factor to this number"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a topic, made or (in a dry run) planned."""

    topic: str
    action: Literal["create", "alter"]
    config: Mapping[str, str]
    partitions: int | None = None
    replication: int | None = None

    def __str__(self) -> str:
        config = ", ".join(f"{name}={value}" for name, value in self.config.items())
        if self.action == "create":
            return (
                f"create {self.topic}: {self.partitions} partitions, "
                f"{self.replication} replicas, {config}"
            )
        return f"alter {self.topic}: {config}"


async def check_topics(kafka: KafkaSettings) -> list[Drift]:
    """The differences between the broker's topics and the registry.

    Raises `BrokerUnavailableError` within `CONNECT_SECONDS` if no broker answers.
    """
    async with open_admin(kafka, "checking topics") as admin:
        return list(find_drift(kafka, await _describe(admin, kafka)))


async def apply_topics(
    kafka: KafkaSettings,
    dry_run: bool = False,
    progress: Callable[[Change], None] = lambda change: None,
) -> list[Change]:
    """Create missing topics, correct their configuration, and return the changes.

    A dry run changes nothing and returns the planned changes. `progress` is called after each
    change. Drift that is not `mendable` stays; `check_topics` reports it.
    Raises `BrokerUnavailableError` within `CONNECT_SECONDS` if no broker answers, `KafkaError` if
    it refuses a change.
    """
    async with open_admin(kafka, "applying topics") as admin:
        found = await _describe(admin, kafka)
        changes = list(plan_changes(kafka, found))
        if dry_run:
            return changes
        for change in changes:
            if change.action == "create":
                await _create(admin, change)
            else:
                await _alter(admin, change, found[change.topic])
            progress(change)
        created = {change.topic for change in changes if change.action == "create"}
        await _until_visible(admin, created)
    return changes


async def find_prefix_hint(kafka: KafkaSettings) -> str:
    """How to use the topics of other prefixes on the broker; empty without any."""
    async with open_admin(kafka, "looking for topics") as admin:
        return _prefix_hint(topic["topic"] for topic in await admin.describe_topics())


def _prefix_hint(names: Iterable[str]) -> str:
    suffix = SAMPLES.full_name("")
    found = sorted(name.removesuffix(suffix) for name in names if name.endswith(suffix))
    if not found:
        return ""
    prefixes = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
    return (
        f"set kafka.topic_prefix: the broker has topics of {prefixes}; or run "
        "`springtide topics apply`"
    )


async def require_topics(kafka: KafkaSettings, topics: Collection[Topic]) -> None:
    """Raise `TopicDriftError` if one of `topics` is missing, `PartitionCountError` if one has
    another number of partitions.

    Roles call it before they begin. Other drift is harmless to them, and a role that may read or
    write a topic may not be allowed to see its configuration. The broker does not list a topic to
    a user without rights on it.
    """
    async with open_admin(kafka, "checking topics") as admin:
        found = await _describe(admin, kafka, with_config=False)
    needed = {topic.full_name(kafka.topic_prefix) for topic in topics}
    harmful = [
        drift
        for drift in find_drift(kafka, found)
        if drift.topic in needed and drift.kind in ("missing", "partitions")
    ]
    if harmful:
        more = f" (and {len(harmful) - 1} more)" if len(harmful) > 1 else ""
        # A wrong number of partitions does not disappear by itself, a missing topic may.
        first = next((drift for drift in harmful if drift.kind == "partitions"), harmful[0])
        if first.kind == "missing":
            hint = "" if found else await find_prefix_hint(kafka)
            raise TopicDriftError(f"{first}{more}", hint=hint or _missing_hint(kafka))
        raise PartitionCountError(
            f"{first.topic} has {first.found} partitions, not {first.wanted}{more}",
            hint=first.partitions_remedy,
        )


def _missing_hint(kafka: KafkaSettings) -> str | None:
    if kafka.sasl_username is None and kafka.ssl_cert_file is None:
        return None
    return (
        "create it with `springtide topics apply`, or grant this user the rights that "
        "`springtide topics acls` prints"
    )


async def existing_partitions(
    client: Mapping[str, Any], names: Collection[str], optional: Collection[str] = ()
) -> list[TopicPartition]:
    """All partitions of these topics, by full name; `client` is what `client_options` returns.

    Raises `TopicDriftError` if a topic is missing that is not `optional`, `BrokerUnavailableError`
    if no broker answers, `KafkaError` if it refuses the connection.
    """
    async with _connect(client, "listing topics") as admin:
        # All topics: asking for one by name would make some brokers create it.
        found = {topic["topic"]: topic for topic in await admin.describe_topics()}
    if missing := sorted(set(names) - set(found) - set(optional)):
        hint = _prefix_hint(found) if found.keys().isdisjoint(names) else ""
        raise TopicDriftError(f"waiting for topic {' and '.join(missing)}", hint=hint or None)
    return [
        TopicPartition(name, partition["partition"])
        for name in names
        if name in found
        for partition in found[name]["partitions"]
    ]


class ConsumerGroup(NamedTuple):
    """The state of a consumer group, as Kafka names it, and the ids of its members. A killed member
    stays until its session ends."""

    state: str
    members: frozenset[str]


async def find_group(kafka: KafkaSettings, group: str) -> ConsumerGroup:
    """Describe a consumer group; an unknown group has no members.

    Raises `KafkaError` if the broker does not describe it, which is not the same as no members.
    """
    async with open_admin(kafka, f"looking at group {group!r}") as admin:
        for left in reversed(range(_COORDINATOR_TRIES)):
            try:
                (response,) = await admin.describe_consumer_groups([group])
                code, _, state, _, _, members, *_ = response.groups[0]
                if (error := errors.for_code(code)) is not errors.NoError:
                    raise error(f"group {group!r}")
                break
            except _NOT_YET:
                # A new broker first creates the topic of consumer offsets.
                if not left:
                    raise
                await asyncio.sleep(COORDINATOR_SECONDS)
    return ConsumerGroup(state, frozenset(member[0] for member in members))


def find_drift(kafka: KafkaSettings, found: Mapping[str, TopicState]) -> Iterator[Drift]:
    """The differences between the registry and the topics `found`, by full name."""
    for topic in TOPICS:
        name = topic.full_name(kafka.topic_prefix)
        state = found.get(name)
        if state is None:
            yield Drift(topic=name, kind="missing", wanted="a topic")
            continue
        numbers: tuple[tuple[Kind, int, int], ...] = (
            ("partitions", topic.partition_count(kafka.partitions), state.partitions),
            ("replication", kafka.replication_factor, state.replication),
        )
        for kind, wanted, has in numbers:
            if wanted != has:
                yield Drift(
                    topic=name, kind=kind, wanted=str(wanted), found=str(has),
                    is_fixed=topic.partitions is not None,
                )  # fmt: skip
        for key, value in topic.config(state.replication).items():
            has_value = state.config.get(key)
            if has_value is None or not _same(value, has_value):
                yield Drift(topic=name, kind="config", key=key, wanted=value, found=has_value)


def plan_changes(kafka: KafkaSettings, found: Mapping[str, TopicState]) -> Iterator[Change]:
    """The changes that correct all mendable drift."""
    drifts = list(find_drift(kafka, found))
    for topic in TOPICS:
        name = topic.full_name(kafka.topic_prefix)
        mine = [drift for drift in drifts if drift.topic == name]
        if any(drift.kind == "missing" for drift in mine):
            yield Change(
                topic=name,
                action="create",
                config=topic.config(kafka.replication_factor),
                partitions=topic.partition_count(kafka.partitions),
                replication=kafka.replication_factor,
            )
        elif config := {d.key: d.wanted for d in mine if d.kind == "config" and d.key}:
            yield Change(topic=name, action="alter", config=config)


def _same(wanted: str, found: str) -> bool:
    if wanted == found:
        return True
    try:
        return float(wanted) == float(found)
    except ValueError:
        # Values such as that of cleanup.policy are lists without an order.
        return sorted(wanted.split(",")) == sorted(found.split(","))


@asynccontextmanager
async def open_admin(kafka: KafkaSettings, doing: str) -> AsyncIterator[AIOKafkaAdminClient]:
    options = client_options(kafka)
    options["request_timeout_ms"] = min(
        options["request_timeout_ms"], round(_REQUEST_SECONDS * 1000)
    )
    async with _connect(options, doing) as admin:
        yield admin


@asynccontextmanager
async def _connect(client: Mapping[str, Any], doing: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client, connected within `CONNECT_SECONDS`, and errors that begin with `doing`."""
    with translated_errors(client, doing):
        admin = AIOKafkaAdminClient(**client)
        try:
            await run_within(CONNECT_SECONDS, admin.start())
            yield admin
        finally:
            await admin.close()


async def _describe(
    admin: AIOKafkaAdminClient, kafka: KafkaSettings, *, with_config: bool = True
) -> dict[str, TopicState]:
    # All topics: asking for one by name would make some brokers create it.
    wanted = {topic.full_name(kafka.topic_prefix) for topic in TOPICS}
    metadata = [t for t in await admin.describe_topics() if t["topic"] in wanted]
    resources = [ConfigResource(ConfigResourceType.TOPIC, t["topic"]) for t in metadata]
    configs: dict[str, Any] = {}
    for response in await admin.describe_configs(resources) if resources and with_config else []:
        for code, message, _, name, entries in response.resources:
            _raise_for(code, name, message)
            configs[name] = entries
    return {t["topic"]: _state(t["partitions"], configs.get(t["topic"], [])) for t in metadata}


def _state(partitions: list[Mapping[str, Any]], entries: list[tuple[Any, ...]]) -> TopicState:
    known = [(name, value, source) for name, value, _, source, *_ in entries if value is not None]
    return TopicState(
        partitions=len(partitions),
        replication=min((len(p["replicas"]) for p in partitions), default=0),
        config={name: value for name, value, _ in known},
        own_config={name: value for name, value, source in known if source == _SET_ON_TOPIC},
    )


async def _create(admin: AIOKafkaAdminClient, change: Change) -> None:
    new = NewTopic(
        change.topic, change.partitions, change.replication, topic_configs=dict(change.config)
    )
    response = await admin.create_topics([new])
    for name, code, *message in response.topic_errors:
        # Another process was faster; `check` reports drift.
        if errors.for_code(code) is not errors.TopicAlreadyExistsError:
            _raise_for(code, name, message[0] if message else None)


async def _alter(admin: AIOKafkaAdminClient, change: Change, state: TopicState) -> None:
    # The request replaces the whole configuration of the topic, so that of others is sent along.
    config = {**state.own_config, **change.config}
    resource = ConfigResource(ConfigResourceType.TOPIC, change.topic, config)
    for response in await admin.alter_configs([resource]):
        for code, message, _, name in response.resources:
            _raise_for(code, name, message)


async def _until_visible(admin: AIOKafkaAdminClient, names: set[str]) -> None:
    async with asyncio.timeout(_VISIBLE_SECONDS):
        while True:
            led = {
                topic["topic"]
                for topic in await admin.describe_topics()
                if topic["partitions"] and all(p["leader"] >= 0 for p in topic["partitions"])
            }
            if names <= led:
                return
            await asyncio.sleep(0.1)


def _raise_for(code: int, topic: str, message: str | None) -> None:
    error = errors.for_code(code)
    if error is errors.NoError:
        return
    hint = None
    if error is errors.InvalidReplicationFactorError:
        hint = "set kafka.replication_factor to at most the number of brokers"
    elif error in (errors.TopicAuthorizationFailedError, errors.ClusterAuthorizationFailedError):
        hint = "give this user the ACLs to create, describe and alter topics"
    detail = f": {message}" if message else ""
    raise KafkaError(f"{topic}: the broker refused: {error.__name__}{detail}", hint=hint)
