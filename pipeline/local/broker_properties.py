"""The settings of a local broker, as `server.properties`.

A broker is a KRaft node that is also a controller: alone, or one of three. Everything listens on
loopback.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.local.broker_security import BrokerSecurity
from pipeline.local.port_probe import HOST

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True)
class ClusterNode:
    """A broker's place in its cluster.

    `controller_ports` has the controller's port of every node by node id. Brokers connect to
    `broker_port` if they may not connect as clients do. Clients that connect to `proxied_port` get
    the address of a proxy, `proxy_port`, which a test can close.
    """

    node_id: int
    controller_ports: Mapping[int, int]
    broker_port: int | None = None
    proxied_port: int | None = None
    proxy_port: int | None = None


def server_properties(
    *,
    port: int,
    node: ClusterNode,
    log_dir: Path,
    identity: str,
    security: BrokerSecurity | None = None,
) -> dict[str, str]:
    """Return a broker's settings: both roles, low background load, replication in a cluster.

    `identity` becomes the rack, which identifies this broker in metadata answers.
    """
    is_cluster = len(node.controller_ports) > 1
    replicas, in_sync = ("3", "2") if is_cluster else ("1", "1")
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": ",".join(
            f"{number}@{HOST}:{voter}" for number, voter in node.controller_ports.items()
        ),
        **_listeners(port, node, security),
        "controller.listener.names": "CONTROLLER",
        "broker.rack": identity,
        "log.dirs": str(log_dir),
        # Topics are created by `springtide topics apply`, not by a mistyped name.
        "auto.create.topics.enable": "false",
        "num.partitions": "16",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "message.max.bytes": str(MAX_MESSAGE_BYTES),
        "replica.fetch.max.bytes": str(MAX_MESSAGE_BYTES),
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": "0",
        **({"leader.imbalance.check.interval.seconds": "5"} if is_cluster else {}),
        # After a kill the broker can register again when its last session has expired.
        "broker.heartbeat.interval.ms": "1000",
        "broker.session.timeout.ms": "5000",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "2",
        "background.threads": "2",
        "log.cleaner.threads": "1",
        "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
        "log.segment.bytes": str(128 * 1024 * 1024),
        "log.index.size.max.bytes": str(1024 * 1024),
    }


def _listeners(port: int, node: ClusterNode, security: BrokerSecurity | None) -> Mapping[str, str]:
    # Clients of a secure broker have a password, brokers and controllers have certificates.
    clients, members = ("PLAINTEXT", "PLAINTEXT") if security is None else ("SASL_SSL", "SSL")
    ports, protocols = {clients: (port, port)}, {clients: clients, "CONTROLLER": members}
    if node.proxied_port is not None and node.proxy_port is not None:
        ports["PROXIED"], protocols["PROXIED"] = (node.proxied_port, node.proxy_port), clients
    if node.broker_port is not None:
        ports["BROKERS"], protocols["BROKERS"] = (node.broker_port, node.broker_port), members
    listeners = [f"{name}://{HOST}:{listening}" for name, (listening, _) in ports.items()]
    controller = f"CONTROLLER://{HOST}:{node.controller_ports[node.node_id]}"
    advertised = [f"{name}://{HOST}:{known}" for name, (_, known) in ports.items()]
    return {
        "listeners": ",".join([*listeners, controller]),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
        "inter.broker.listener.name": "BROKERS" if "BROKERS" in ports else clients,
        **({} if security is None else security.properties()),
    }


def properties_text(settings: Mapping[str, str]) -> str:
    """Format a Java properties file: ASCII, with UTF-16 escapes for other characters."""
    return "".join(f"{key}={_escape(value)}\n" for key, value in settings.items())


def _escape(value: str) -> str:
    units = value.encode("utf-16-be")
    codes = [int.from_bytes(units[start : start + 2]) for start in range(0, len(units), 2)]
    return "".join(
        chr(code) if 0x20 < code < 0x7F and code != ord("\\") else f"\\u{code:04x}"
        for code in codes
    )
