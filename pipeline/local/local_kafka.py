"""Run a real Apache Kafka broker as a child process on loopback.

One KRaft node, which answers every client, or with `secure` only users with TLS and a password. The
broker is ready when it answers a metadata request. It has the same port and data after `stop` and
`start`. On `close`, or when this process ends in any way, `pipeline.local.process_guard` stops it
and removes its temporary directory. `pipeline.local.kafka_cluster` starts several as one cluster.
"""

import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final, TypeVar

from pipeline.clock import SystemClock
from pipeline.errors import LocalKafkaError
from pipeline.local import process_guard
from pipeline.local.broker_properties import ClusterNode, properties_text, server_properties
from pipeline.local.broker_security import BrokerSecurity
from pipeline.local.guarded_process import GuardedProcess
from pipeline.local.java_runtime import Java, find_java
from pipeline.local.kafka_jars import ensure_jars
from pipeline.local.port_probe import HOST, PORT_TAKEN_IN_LOG, broker_racks, free_port, is_free
from pipeline.local.running_brokers import RunningBroker, state_file

# Storage is formatted with a cluster id; a constant needs no run of Java to generate one.
CLUSTER_ID: Final = "c3ByaW5ndGlkZS1sb2NhbA"

# Names in the data directory.
_FORMATTED: Final = "formatted"
_SECURITY: Final = "security"

_PORT_ATTEMPTS = 5
LOG_ROTATION_BYTES = 16 * 1024 * 1024
_TAIL_LINES = 15
_STARTED_IN_LOG = "Kafka Server started"

_HEAP = ("-Xms256m", "-Xmx512m")
_BROKER_JVM = ("-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError")
# One JIT compiler instead of two: half the CPU time in the first minutes, twice that of an hour.
_SHORT_RUN_JVM = ("-XX:TieredStopAtLevel=1",)
_FORMAT_JVM = ("-Xmx128m", "-XX:+UseSerialGC", *_SHORT_RUN_JVM)
_COMMON_JVM = (
    "-XX:-UsePerfData",  # otherwise a file in /tmp survives kill -9
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
    # It logs all settings three times per start; server.properties has the relevant ones.
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
)

_T = TypeVar("_T")


class LocalKafka:
    """A broker that this process starts. Not thread-safe.

    Without `data_dir` it is tuned for minutes: it starts faster, and its data is in a temporary
    directory that is removed. With `data_dir` the data remains for the next broker, and Java
    compiles for throughput, as long benchmarks need. Without `port` a free port is chosen at the
    first start. A `secure` broker has certificates, users and ACLs (`security`). With `node` it is
    a member of a cluster.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        port: int | None = None,
        *,
        secure: bool = False,
        node: ClusterNode | None = None,
    ) -> None:
        self._requested_dir = data_dir
        self._dir: Path | None = None
        self._port = port
        self._is_secure = secure
        self._security: BrokerSecurity | None = None
        self._node = node
        self._java: Java | None = None
        self._child: GuardedProcess | None = None
        self._pid: int | None = None
        self._launched_at_byte = 0
        self._identity = f"local-{secrets.token_hex(8)}"

    @property
    def port(self) -> int:
        """The port on 127.0.0.1. Raises `LocalKafkaError` before the first start."""
        return _require_started(self._port)

    @property
    def bootstrap_servers(self) -> str:
        """The value for `bootstrap_servers` of clients."""
        return f"{HOST}:{self.port}"

    @property
    def data_dir(self) -> Path:
        """The directory with data, settings and log."""
        return _require_started(self._dir)

    @property
    def security(self) -> BrokerSecurity:
        """Certificates and users. Raises `LocalKafkaError` before the first start, or without."""
        return _require_started(self._security)

    @property
    def log_file(self) -> Path:
        """The log of Kafka."""
        return self.data_dir / "kafka.log"

    @property
    def java(self) -> Java:
        """The Java that runs it."""
        return _require_started(self._java)

    @property
    def pid(self) -> int | None:
        """The JVM's process id; None while it is not running."""
        if self._child is None or not self._child.is_running():
            self._pid = None
        return self._pid

    def start(self, timeout_seconds: float = 180.0) -> None:
        """Start it, with the port and data of an earlier start; return when it is ready.

        Downloads missing jars first. Raises `LocalKafkaError` without Java, or with the end of
        Kafka's log if it ends or is not ready within `timeout_seconds` (without the download), if
        an existing data directory is secure and this broker is not or vice versa, or what
        `ensure_jars` raises.
        """
        if self.pid is not None:
            return
        if self._requested_dir is not None:
            _check_protection(self._requested_dir, secure=self._is_secure)
        self._java = self._java or find_java()
        class_path = os.pathsep.join(map(str, ensure_jars()))
        deadline = time.monotonic() + timeout_seconds
        self._prepare()
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            port = free_port() if self._port is None else self._port
            if self._port is not None and not is_free(port):
                raise LocalKafkaError(
                    f"port {port} of {HOST} is in use",
                    hint=f"choose another port, or find its user: ss -ltnp 'sport = :{port}'",
                )
            if self._launch(class_path, port, deadline):
                self._port = port
                return
            if attempt == _PORT_ATTEMPTS or not PORT_TAKEN_IN_LOG.search(self._log_since_launch()):
                raise self._start_error(timed_out=time.monotonic() >= deadline)

    def stop(self) -> None:
        """Send SIGTERM and wait, SIGKILL after 20 s. The next start has the same port and data."""
        self._end_by_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, to simulate a crash. The next start has the same port and data."""
        self._end_by_signal(signal.SIGKILL)

    def close(self) -> None:
        """Stop, and remove a temporary directory. May be called twice."""
        if self._child is not None:
            self._child.close()
            self._child = self._pid = None
        if self._requested_dir is None and self._dir is not None:
            shutil.rmtree(self._dir, ignore_errors=True)
            self._dir = None

    def wait(self) -> int | None:
        """Wait until it ends; return its exit code (143 by SIGTERM), None if its guard died."""
        child = _require_started(self._child)
        while self.pid is not None:
            time.sleep(0.2)
        return child.exit_code

    def announce(self, started_at: str) -> None:
        """Make it visible to `pipeline.local.running_brokers` while its guard is running."""
        running = RunningBroker(
            port=self.port,
            pid=_require_started(self.pid),
            guard_pid=0,
            identity=self._identity,
            data_dir=str(self.data_dir),
            log_file=str(self.log_file),
            java=str(self.java),
            started_at=started_at,
            ca_file=None if self._security is None else str(self._security.ca_file),
        )
        _require_started(self._child).ask(
            "announced", do="announce", path=str(state_file(self.port)), state=asdict(running)
        )

    def detach(self) -> None:
        """Let it outlive this process; SIGTERM to its guard stops it."""
        child = _require_started(self._child)
        child.ask("detached", do="detach")
        child.disconnect()
        self._child = self._pid = None

    def _end_by_signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            _require_started(self._child).signal(number, process_guard.GRACE_SECONDS)
        self._pid = None

    def _prepare(self) -> None:
        if self._dir is None:
            self._dir = _make_dir(self._requested_dir)
        (self._dir / "tmp").mkdir(exist_ok=True)
        if self.log_file.exists() and self.log_file.stat().st_size > LOG_ROTATION_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        self.log_file.touch()
        if self._is_secure:
            self._security = BrokerSecurity(self._dir / _SECURITY, SystemClock())
        if self._child is None:
            remove = self._dir if self._requested_dir is None else None
            self._child = GuardedProcess(self.log_file, remove)

    def _launch(self, class_path: str, port: int, deadline: float) -> bool:
        child = _require_started(self._child)
        settings = server_properties(
            port=port,
            node=self._node or _single_node(port, secure=self._is_secure),
            log_dir=self.data_dir / "data",
            identity=self._identity,
            security=self._security,
        )
        file = self.data_dir / "server.properties"
        file.write_text(properties_text(settings), encoding="ascii")
        self._launched_at_byte = self.log_file.stat().st_size
        java, tmp = str(self.java.path), self.data_dir / "tmp"
        shared = [*_COMMON_JVM, f"-Djava.io.tmpdir={tmp}", "-cp", class_path]
        formatted = self.data_dir / _FORMATTED
        if not formatted.exists():
            tool = ["kafka.tools.StorageTool", "format", "--ignore-formatted"]
            tool += ["--cluster-id", CLUSTER_ID, "--config", str(file)]
            tool += [] if self._security is None else self._security.format_flags()
            child.start([java, *_FORMAT_JVM, *shared, *tool], cwd=self.data_dir)
            if child.wait(deadline) != 0:
                child.signal(signal.SIGKILL, 0)
                return False
            formatted.write_text(CLUSTER_ID + "\n")
        short_run_flags = _SHORT_RUN_JVM if self._requested_dir is None else ()
        argv = [java, *_HEAP, *_BROKER_JVM, *short_run_flags, *shared, "kafka.Kafka", str(file)]
        self._pid = child.start(argv, cwd=self.data_dir)
        while self.pid is not None:
            if self._answers(port):
                return True
            if time.monotonic() > deadline:
                self._end_by_signal(signal.SIGKILL)
            time.sleep(0.05)
        return False

    def _answers(self, port: int) -> bool:
        if self._security is None:
            return self._identity in broker_racks(port)
        # It answers only users. It logs this once it has its port and the users of the cluster.
        return _STARTED_IN_LOG in self._log_since_launch()

    def log_tail(self) -> str:
        """Return the last lines of Kafka's log since the last start, without stack frames."""
        lines = self._log_since_launch().splitlines()
        # The cause is above the stack traces, not in them.
        messages = [line for line in lines if not line.startswith(("\tat ", "\t... "))]
        return "\n".join(f"  {line}" for line in messages[-_TAIL_LINES:])

    def _log_since_launch(self) -> str:
        with self.log_file.open("rb") as file:
            file.seek(self._launched_at_byte)
            return file.read().decode(errors="replace")

    def _start_error(self, *, timed_out: bool) -> LocalKafkaError:
        problem = "was not ready in time" if timed_out else "ended at its start"
        tail = self.log_tail()
        hint = (
            "free memory or disk space; if its data is damaged and dispensable, remove the data "
            "directory"
        )
        return LocalKafkaError(
            f"Kafka {problem} ({self.java}, data in {self.data_dir}); its log "
            + (f"ends:\n{tail}\n" if tail.strip() else "is empty"),
            hint=f"try again when this machine is less busy; else {hint}" if timed_out else hint,
        )


@contextmanager
def local_kafka(data_dir: Path | None = None, *, secure: bool = False) -> Iterator[LocalKafka]:
    """Start a broker, and close it at the end of the `with` block."""
    broker = LocalKafka(data_dir, secure=secure)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


def _single_node(port: int, *, secure: bool) -> ClusterNode:
    broker_port = free_port(excluded_port=port) if secure else None
    return ClusterNode(1, {1: free_port(excluded_port=port)}, broker_port)


def _require_started(value: _T | None) -> _T:
    if value is None:
        raise LocalKafkaError("the local broker is not running", hint="call start() first")
    return value


def _check_protection(data_dir: Path, *, secure: bool) -> None:
    """Raise `LocalKafkaError` if the data is protected and the broker would not be, or if the
    broker would require users that its data does not have."""
    security = data_dir / _SECURITY
    has_users = security.exists()
    if has_users and not secure:
        raise LocalKafkaError(
            f"the data directory {data_dir} is of a secure broker: it has {security}",
            hint="start it with --secure, or give another directory with --data-dir; if its data "
            f"was always open, remove {security}",
        )
    if secure and not has_users and (data_dir / _FORMATTED).exists():
        raise LocalKafkaError(
            f"the data directory {data_dir} is of a broker without users, which are created only "
            "in a new one",
            hint="give a new directory with --data-dir, or start it without --secure",
        )


def _make_dir(requested: Path | None) -> Path:
    where = requested or Path(tempfile.gettempdir())
    if "," in str(where.absolute()):
        raise LocalKafkaError(
            f"Kafka does not support the comma in {where}",
            hint="choose a data directory without a comma",
        )
    try:
        if requested is None:
            return Path(tempfile.mkdtemp(prefix="springtide-kafka-"))
        requested.mkdir(parents=True, exist_ok=True)
        return requested.resolve()
    except OSError as error:
        raise LocalKafkaError(
            f"cannot create the broker's data directory in {where}: {error.strerror}",
            hint="give another with --data-dir, or set TMPDIR",
        ) from error
