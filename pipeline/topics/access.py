"""What each role reads and writes: its rights in Kafka, declared once.

`springtide topics acls` prints them, docs/reference/topics.md has them as a table, a secure local
broker grants them, and a role checks at its start that its topics exist.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from pipeline.topics.registry import (
    ACCURACY,
    ACTIONS,
    ALERTS,
    CHECKPOINTS,
    DEAD_LETTERS,
    EVICTION_PLANS,
    EVICTION_REQUESTS,
    FLEET,
    HEARTBEATS,
    NODE_STATE,
    NODE_VIEWS,
    NODES,
    PODS,
    PREDICTIONS,
    RECOMMENDATIONS,
    RESOURCES,
    SAMPLES,
    TOPICS,
    WAKE_UPS,
    WHAT_IF,
    WINDOWS,
    WORKLOADS,
    Topic,
)

Operation = Literal["Read", "Write", "Create", "Describe", "DescribeConfigs", "AlterConfigs"]
Resource = Literal["topic", "group", "transactional-id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The topics of a role. `in_group` reads as a member of the workers' consumer group, `is_sole`
    writes in transactions, and `administers` may create topics and change their settings.
    `bytes_per_second` is what its user may write to each broker, all processes together."""

    name: str
    task: str
    reads: tuple[Topic, ...] = ()
    writes: tuple[Topic, ...] = ()
    in_group: bool = False
    is_sole: bool = False
    administers: bool = False
    bytes_per_second: int | None = None

    @property
    def topics(self) -> tuple[Topic, ...]:
        """The topics that must exist for this role, in the order of the registry."""
        return tuple(topic for topic in TOPICS if topic in self.reads or topic in self.writes)


class Right(NamedTuple):
    """An ACL that allows a user an operation; `name` is a literal name, not a prefix."""

    user: str
    resource: Resource
    name: str
    operation: Operation


_WORKER_READS: Final = (
    SAMPLES, NODES, PODS, FLEET, WINDOWS, NODE_STATE, RECOMMENDATIONS, CHECKPOINTS,
)  # fmt: skip
_WORKER_WRITES: Final = (
    FLEET, WINDOWS, PREDICTIONS, RESOURCES, NODE_STATE, NODE_VIEWS, ALERTS, ACCURACY,
    RECOMMENDATIONS, CHECKPOINTS, DEAD_LETTERS,
)  # fmt: skip

_MIB: Final = 1 << 20

ROLES: Final[Mapping[str, Role]] = {
    role.name: role
    for role in (
        # Programs on every node: one that is broken must not take the brokers from the workers.
        Role(
            name="exporter", task="node exporter", reads=(NODES,), writes=(SAMPLES,),
            bytes_per_second=16 * _MIB,
        ),
        Role(
            name="provider", task="imports usage from other systems",
            reads=(NODES, PODS, SAMPLES), writes=(SAMPLES,),
        ),
        Role(
            name="watcher", task="cluster watcher", is_sole=True,
            reads=(NODES, PODS, WORKLOADS), writes=(NODES, PODS, WORKLOADS, HEARTBEATS),
        ),
        Role(
            name="worker", task="worker", in_group=True,
            reads=_WORKER_READS, writes=_WORKER_WRITES,
        ),
        Role(
            name="worker-with-files", in_group=True,
            task="worker with `worker.nodes_file` or `worker.pods_file`",
            reads=_WORKER_READS, writes=(NODES, PODS, *_WORKER_WRITES),
        ),
        Role(
            name="extender", task="scheduler extender",
            reads=(
                NODES, PODS, HEARTBEATS, FLEET, WINDOWS, RESOURCES, NODE_STATE, NODE_VIEWS, ALERTS,
                EVICTION_PLANS, ACTIONS, ACCURACY, WHAT_IF,
            ),
            writes=(EVICTION_PLANS, WAKE_UPS, DEAD_LETTERS),
        ),
        Role(
            name="actuator", task="cluster actuator",
            reads=(NODES, HEARTBEATS, WINDOWS, RESOURCES, NODE_STATE, WAKE_UPS), writes=(ACTIONS,),
        ),
        Role(
            name="planner", task="plans how hot nodes are relieved",
            reads=(
                NODES, PODS, HEARTBEATS, FLEET, WINDOWS, PREDICTIONS, RESOURCES, NODE_STATE,
                ALERTS, EVICTION_REQUESTS, EVICTION_PLANS, ACTIONS, WORKLOADS,
            ),
            writes=(FLEET, ALERTS, EVICTION_PLANS, ACTIONS),
        ),
        Role(
            name="evictor", task="eviction actuator",
            reads=(EVICTION_PLANS, ACTIONS), writes=(ACTIONS,),
        ),
        Role(
            name="node-actuator", task="node actuator",
            reads=(NODE_VIEWS,), writes=(ACTIONS, EVICTION_REQUESTS), bytes_per_second=4 * _MIB,
        ),
        Role(
            name="node-agent", task="other agents on nodes that ask for relief",
            writes=(EVICTION_REQUESTS,), bytes_per_second=_MIB,
        ),
        Role(name="notifier", task="sends alerts to Alertmanager", reads=(NODE_STATE, ALERTS)),
        Role(name="archive", task="writes windows to Parquet files", reads=(WINDOWS,)),
        Role(name="reader", task="commands that only read, such as `top`", reads=TOPICS),
        Role(
            name="operator",
            task="`topics apply`, `doctor`, `model import`, `what-if --publish`, other commands",
            reads=TOPICS, writes=(WHAT_IF, CHECKPOINTS), administers=True,
        ),
    )
}  # fmt: skip
"""Every role of Springtide, by name."""

_ADMINISTRATION: Final[tuple[Operation, ...]] = ("Create", "DescribeConfigs", "AlterConfigs")


def user_of(role: str) -> str:
    """The name of a role's user in Kafka, unless the operator chooses another."""
    return f"springtide-{role}"


def sole_writer_of(prefix: str) -> str:
    """The transactional id of the watcher of a topic prefix."""
    return f"{prefix}-watcher"


def rights_of(role: Role, prefix: str, group: str) -> Iterator[Right]:
    """Yield the rights of a role on the topics of `prefix` and the consumer group `group`.

    Reading or writing includes describing. Kafka lets a user who may write to any topic produce
    idempotently.
    """
    user = user_of(role.name)
    for topic in role.topics:
        operations: list[Operation] = ["Read"] if topic in role.reads else []
        operations += ["Write"] if topic in role.writes else []
        operations += _ADMINISTRATION if role.administers else []
        for operation in operations:
            yield Right(user, "topic", topic.full_name(prefix), operation)
    if role.in_group:
        yield Right(user, "group", group, "Read")
    if role.administers:
        yield Right(user, "group", group, "Describe")
    if role.is_sole:
        yield Right(user, "transactional-id", sole_writer_of(prefix), "Write")


def operations_by_resource(
    rights: Iterable[Right],
) -> Mapping[tuple[str, Resource, str], tuple[Operation, ...]]:
    """Return the operations of each user on each resource, by user, kind and name."""
    operations: dict[tuple[str, Resource, str], tuple[Operation, ...]] = {}
    for right in rights:
        resource = (right.user, right.resource, right.name)
        operations[resource] = (*operations.get(resource, ()), right.operation)
    return operations


def acl_commands(rights: Iterable[Right], connection: str) -> Iterator[str]:
    """Yield command lines of Kafka's own tool, one for each user and the resources on which it has
    the same rights. `connection` are the flags by which the tool connects."""
    resources: dict[tuple[str, tuple[Operation, ...]], list[str]] = {}
    for (user, resource, name), operations in operations_by_resource(rights).items():
        resources.setdefault((user, operations), []).append(f"--{resource} {name}")
    for (user, operations), names in resources.items():
        flags = " ".join(f"--operation {operation}" for operation in operations)
        yield (
            f"kafka-acls.sh {connection} --add "
            f"--allow-principal User:{user} {flags} {' '.join(names)}"
        )


def quota_commands(roles: Iterable[Role], connection: str) -> Iterator[str]:
    """Yield a command line of Kafka's own tool for each user with a quota."""
    for role in roles:
        if role.bytes_per_second is not None:
            yield (
                f"kafka-configs.sh {connection} --alter --entity-type users --entity-name "
                f"{user_of(role.name)} --add-config producer_byte_rate={role.bytes_per_second}"
            )


def access_table() -> str:
    """The roles as the table of docs/reference/topics.md."""
    lines = ["| user | for | reads | writes | also |", "|---|---|---|---|---|"]
    for role in ROLES.values():
        reads = "all" if role.reads == TOPICS else _names(role.reads)
        also = {
            "the consumer group of the workers": role.in_group,
            "the transactional id `<prefix>-watcher`": role.is_sole,
            "create, describe and alter topics; describe the workers' group": role.administers,
        }
        if role.bytes_per_second is not None:
            also[f"at most {role.bytes_per_second // _MIB} MiB/s to each broker"] = True
        more = "; ".join(text for text, has in also.items() if has)
        lines.append(
            f"| `{user_of(role.name)}` | {role.task} | {reads} | {_names(role.writes)} | {more} |"
        )
    return "\n".join(lines) + "\n"


def _names(topics: Iterable[Topic]) -> str:
    return ", ".join(topic.name for topic in topics)
