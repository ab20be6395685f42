"""Run three brokers as one cluster on this machine, for tests: 300 MB each.

Every broker is a controller, too, so one of the three may be away. Topics have three replicas, of
which two must confirm a record. A broker keeps its port and data when it is stopped or killed.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from pipeline.local.broker_properties import ClusterNode
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.port_probe import free_port

BROKERS: Final = 3

# On two cores, with other tests beside it.
_START_SECONDS: Final = 120.0


class LocalCluster:
    """Three brokers with temporary directories; `brokers` can be stopped, killed and started.

    With `proxy_ports`, one for each broker, clients of `proxied_servers` are sent to these ports:
    a proxy there can cut them off from one broker.
    """

    def __init__(self, proxy_ports: Sequence[int] = ()) -> None:
        ports = [free_port() for _ in range(2 * BROKERS)]
        controllers = {number + 1: ports[number] for number in range(BROKERS)}
        proxied = ports[BROKERS:] if proxy_ports else []
        self.proxied_ports = proxied
        self.brokers = [
            LocalKafka(
                node=ClusterNode(
                    number,
                    controllers,
                    proxied_port=proxied[number - 1] if proxied else None,
                    proxy_port=proxy_ports[number - 1] if proxied else None,
                )
            )
            for number in controllers
        ]

    @property
    def bootstrap_servers(self) -> str:
        """The value for `bootstrap_servers` of clients."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers)

    def start(self) -> None:
        """Start all brokers, and return when each is ready. Raises `LocalKafkaError`."""
        with ThreadPoolExecutor(BROKERS) as threads:
            # A broker is ready only when a second one is there.
            list(threads.map(lambda broker: broker.start(_START_SECONDS), self.brokers))

    def close(self) -> None:
        """Stop all brokers, and remove their directories. May be called twice."""
        with ThreadPoolExecutor(BROKERS) as threads:
            list(threads.map(LocalKafka.close, self.brokers))


@contextmanager
def local_cluster(proxy_ports: Sequence[int] = ()) -> Iterator[LocalCluster]:
    """Start three brokers, and close them at the end of the `with` block."""
    cluster = LocalCluster(proxy_ports)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
