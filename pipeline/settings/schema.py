"""What can be set: every key with its type, range, default and meaning, and nothing else.

The descriptions here are the only ones: `--help` and docs/settings.md are made from them.
"""

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from pipeline.errors import SettingsError

SECONDS_OF_A_DAY = 86_400

# RFC 1123 subdomain, as the API server asks of a Node's name.
_NODE_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
_SERVER = r"([^\s,:\[\]/]+|\[[0-9a-fA-F:]+\]):\d{1,5}"
_SERVERS = rf"^{_SERVER}(,{_SERVER})*$"

Port = Annotated[int, Meta(ge=0, le=65535)]
Text = Annotated[str, Meta(min_length=1)]
# `title` is what is allowed, in words, where a pattern would say it to nobody.
Name = Annotated[
    str,
    Meta(
        # What Kafka takes as part of a topic's or group's name.
        pattern=r"^[A-Za-z0-9][-A-Za-z0-9._]{0,99}$",
        title="a name of letters, digits, -, . and _, at most 100",
    ),
]
NodeName = Annotated[
    str,
    Meta(
        pattern=_NODE_NAME,
        title="a name of lower-case letters, digits, - and ., at most 253",
    ),
]
Servers = Annotated[
    str,
    Meta(pattern=_SERVERS, title="host:port, several with commas between them"),
]


class Secret:
    """A text that prints as stars; `reveal()` is the only way to the value."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret('***')"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


class Section(Struct, frozen=True, kw_only=True):
    """A group of keys. `problems` is overridden where keys depend on each other."""

    def problems(self) -> Mapping[str, str]:
        """What is wrong between keys that are right each by itself: key -> what is allowed."""
        return {}


class KafkaSettings(Section, frozen=True, kw_only=True):
    """The broker, and how to reach it."""

    bootstrap_servers: Annotated[
        Servers, Meta(description="Brokers to ask first: host:port, several with commas.")
    ] = "127.0.0.1:9092"
    topic_prefix: Annotated[Name, Meta(description="First part of every topic's name.")] = (
        "springtide"
    )
    partitions: Annotated[
        int,
        Meta(
            ge=1,
            le=4096,
            description="Partitions of every topic that is keyed by node. The same for the life of "
            "the topics: where a node's records lie depends on it.",
        ),
    ] = 16
    replication_factor: Annotated[
        int, Meta(ge=1, le=32, description="Copies of every partition; 3 in production.")
    ] = 1
    request_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How long a request may wait for an answer. Longer than the broker outage "
            "that is to be survived without a restart.",
        ),
    ] = 40.0
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        Meta(description="How connections are encrypted and authenticated."),
    ] = "PLAINTEXT"
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None,
        Meta(description="Needed with SASL_PLAINTEXT and SASL_SSL."),
    ] = None
    sasl_username: Annotated[Text | None, Meta(description="Needed with a SASL mechanism.")] = None
    sasl_password: Annotated[
        Secret | None,
        Meta(description="Needed with a SASL mechanism; never printed. Best set by environment."),
    ] = None
    ssl_ca_file: Annotated[
        Path | None, Meta(description="CA certificates (PEM); null: those of the system.")
    ] = None
    ssl_cert_file: Annotated[
        Path | None, Meta(description="Certificate of this client (PEM), for mutual TLS.")
    ] = None
    ssl_key_file: Annotated[Path | None, Meta(description="Private key of this client (PEM).")] = (
        None
    )

    def problems(self) -> Mapping[str, str]:
        found = {}
        if self.security_protocol.startswith("SASL"):
            for key in ("sasl_mechanism", "sasl_username", "sasl_password"):
                if getattr(self, key) is None:
                    found[key] = f"a value, because security_protocol is {self.security_protocol}"
        if (self.ssl_cert_file is None) != (self.ssl_key_file is None):
            missing = "ssl_cert_file" if self.ssl_cert_file is None else "ssl_key_file"
            found[missing] = "a file: certificate and key are given together"
        return found


class HostApplicationCgroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a host application's cgroup is, in Koordinator's spelling."""

    base: Literal["CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort"] = (
        "CgroupRoot"
    )
    parent_dir: str = field(name="parentDir", default="")
    relative_path: str = field(name="relativePath", default="")


class HostApplication(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process group outside Kubernetes whose usage is measured by itself."""

    name: Text
    priority: Literal["koord-prod", "koord-mid", "koord-batch", "koord-free", ""] = ""
    qos: Literal["LSE", "LSR", "LS", "BE", "SYSTEM", ""] = ""
    # None: host-latency-sensitive/<name>, host-best-effort/<name> or <name>, by the QoS.
    cgroup_path: HostApplicationCgroup | None = field(name="cgroupPath", default=None)


class ExporterSettings(Section, frozen=True, kw_only=True):
    """The collector on every node."""

    node_name: Annotated[
        NodeName | None,
        Meta(
            description="Name of the Node object of this machine; null: the variable NODE_NAME, "
            "else the host name in lower case."
        ),
    ] = None
    collect_interval_seconds: Annotated[
        float, Meta(ge=0.1, le=60, description="Time between two readings of the kernel's files.")
    ] = 1.0
    window_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=3600,
            description="Length of a window. Must divide a day, so that windows lie on one grid of "
            "UTC on all nodes.",
        ),
    ] = 30
    system_outdated_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="The system remainder (node minus pods minus host applications) of a "
            "second is unknown when the newest reading of one of its parts is older than this. The "
            "system's models learn from it; the local socket and the metrics page show it.",
        ),
    ] = 10.0
    memory_collect_policy: Annotated[
        Literal["usageWithoutPageCache", "usageWithHotPageCache", "usageWithPageCache"],
        Meta(description="Which of the three measured memory figures the own metrics show."),
    ] = "usageWithoutPageCache"
    cgroup_root: Annotated[
        Path, Meta(description="Where cgroups are mounted; in a container the host's mount.")
    ] = Path("/sys/fs/cgroup")
    proc_root: Annotated[Path, Meta(description="Where the host's /proc is mounted.")] = Path(
        "/proc"
    )
    sys_root: Annotated[Path, Meta(description="Where the host's /sys is mounted.")] = Path("/sys")
    cgroup_driver: Annotated[
        Literal["auto", "systemd", "cgroupfs"],
        Meta(description="How the kubelet names pod cgroups; auto looks."),
    ] = "auto"
    cgroup_parent: Annotated[
        str,
        Meta(
            description="Directory that holds kubepods, below the cgroup root: the kubelet's "
            "--cgroup-root, such as /kubelet.slice under kind. Empty: kubepods is at the top."
        ),
    ] = ""
    host_applications: Annotated[
        tuple[HostApplication, ...],
        Meta(
            description="Process groups outside Kubernetes to measure by themselves: a list of "
            "{name, priority, qos, cgroupPath: {base, parentDir, relativePath}}."
        ),
    ] = ()
    buffer_bytes: Annotated[
        int,
        Meta(
            ge=65_536,
            le=2**32,
            description="Windows kept in memory while Kafka is away; the oldest are dropped first "
            "and counted.",
        ),
    ] = 33_554_432
    socket_path: Annotated[
        Path | None,
        Meta(
            description="Local socket on which the last seconds are served; null: none. A path "
            "that cannot be used is an error, the default one a warning."
        ),
    ] = Path("/run/springtide/exporter.sock")
    metrics_host: Annotated[
        Text, Meta(description="Address of the metrics page; Prometheus comes from outside.")
    ] = "0.0.0.0"
    metrics_port: Annotated[
        Port | None, Meta(description="Port of the metrics page; 0: any free one, null: none.")
    ] = 9101

    def __post_init__(self) -> None:
        # The kubelet writes it with a slash in front, which would leave our cgroup root.
        parts = (part for part in self.cgroup_parent.split("/") if part not in ("", "."))
        force_setattr(self, "cgroup_parent", "/".join(parts))

    def problems(self) -> Mapping[str, str]:
        found = {}
        if ".." in self.cgroup_parent.split("/"):
            found["cgroup_parent"] = "a directory below the cgroup root, without .."
        if SECONDS_OF_A_DAY % self.window_seconds:
            found["window_seconds"] = "a divisor of 86400 (5, 10, 15, 20, 30, 60, 120, 300, ...)"
        if self.collect_interval_seconds > self.window_seconds:
            found["collect_interval_seconds"] = f"at most window_seconds ({self.window_seconds})"
        names = [application.name for application in self.host_applications]
        if len(set(names)) < len(names):
            found["host_applications"] = "each name once"
        return found


class WorkerSettings(Section, frozen=True, kw_only=True):
    """The pipeline worker: join and model."""

    id: Annotated[
        Name,
        Meta(
            description="Consumer group of the workers that share the partitions; the same for "
            "all workers of a topic prefix: two groups would write everything twice."
        ),
    ] = "springtide-worker"
    instance_id: Annotated[
        Name | None,
        Meta(
            description="Name of this member for static membership (rolling restarts without a "
            "rebalance); never the same on two workers. null: dynamic."
        ),
    ] = None
    session_timeout_seconds: Annotated[
        float,
        Meta(
            ge=6, le=1800, description="After this without a heartbeat another worker takes over."
        ),
    ] = 30.0
    checkpoint_interval_seconds: Annotated[
        float, Meta(gt=0, le=86_400, description="Time from one round of checkpoints to the next.")
    ] = 300.0
    data_dir: Annotated[
        Path | None,
        Meta(
            description="Directory for Faust's own files, nothing of value; null: "
            "$XDG_STATE_HOME/springtide, else ~/.local/state/springtide."
        ),
    ] = None
    nodes_file: Annotated[
        Path | None, Meta(description="Node objects as `kubectl get nodes -o json` prints them.")
    ] = None
    pods_file: Annotated[
        Path | None, Meta(description="Pod objects as `kubectl get pods -A -o json` prints them.")
    ] = None
    metrics_host: Annotated[
        Text, Meta(description="Address of the metrics page; Prometheus comes from outside.")
    ] = "0.0.0.0"
    metrics_port: Annotated[
        Port | None, Meta(description="Port of the metrics page; 0: any free one, null: none.")
    ] = 9102
    future_tolerance_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="A window that ends further ahead of the broker's clock is a dead letter.",
        ),
    ] = 60.0
    batch_size: Annotated[
        int, Meta(ge=1, le=10_000, description="Windows that are applied at once, at most.")
    ] = 200
    supervise: Annotated[
        bool,
        Meta(description="Run as a child that is restarted; false under Kubernetes or systemd."),
    ] = True
    restart_backoff_min_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="Pause before the first restart; then it doubles.")
    ] = 1.0
    restart_backoff_max_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="Longest pause before a restart.")
    ] = 30.0

    def problems(self) -> Mapping[str, str]:
        if self.restart_backoff_max_seconds < self.restart_backoff_min_seconds:
            least = self.restart_backoff_min_seconds
            return {
                "restart_backoff_max_seconds": f"at least restart_backoff_min_seconds ({least:g})"
            }
        return {}


class HalfLifeSettings(Section, frozen=True, kw_only=True):
    """After which time an observation counts half."""

    cpu: Annotated[float, Meta(ge=1, le=31_536_000, description="Half-life of the CPU models.")] = (
        43_200.0
    )
    memory: Annotated[
        float, Meta(ge=1, le=31_536_000, description="Half-life of the memory models.")
    ] = 86_400.0


class ModelSettings(Section, frozen=True, kw_only=True):
    """What is predicted from the windows."""

    cold_start_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=31_536_000,
            description="A pod younger than this is cold: its request stands in for its peak.",
        ),
    ] = 86_400.0
    safety_margin_percent: Annotated[
        float, Meta(ge=0, le=1000, description="Added on top of every predicted peak.")
    ] = 10.0
    half_life_seconds: HalfLifeSettings = HalfLifeSettings()
    training_statistic: Annotated[
        Literal["avg", "p90", "p95", "max", "last"],
        Meta(description="Which statistic of a window the models learn from."),
    ] = "p90"
    memory_collect_policy: Annotated[
        Literal["usageWithoutPageCache", "usageWithHotPageCache", "usageWithPageCache"],
        Meta(
            description="Which of the three measured memory figures counts as memory usage; where "
            "a kernel does not give it, usageWithoutPageCache."
        ),
    ] = "usageWithoutPageCache"
    expiration_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=31_536_000,
            description="A pod's model is dropped this long (event time) after its last sample.",
        ),
    ] = 1800.0
    nsigma_multiplier: Annotated[
        float,
        Meta(ge=0, le=100, description="Deviations above the mean that N-sigma calls the peak."),
    ] = 3.0
    minimum_coverage: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="A window with a smaller share of its readings trains nothing.",
        ),
    ] = 0.5


class ExtenderSettings(Section, frozen=True, kw_only=True):
    """The HTTP service that a scheduler asks."""

    mode: Annotated[
        Literal["observe", "act"],
        Meta(
            description="observe: every node passes, the answer that would have been given is "
            "logged. act: the answer counts."
        ),
    ] = "observe"
    host: Annotated[Text, Meta(description="Address to listen on.")] = "0.0.0.0"
    port: Annotated[
        Port, Meta(description="Port for the scheduler, health and metrics; 0: any free one.")
    ] = 8888
    cpu_threshold_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="A node is refused whose CPU use, in percent of its allocatable and "
            "rounded half up to a whole number, is above this: with 65, 65.4 passes and 65.5 does "
            "not. 0: never.",
        ),
    ] = 65.0
    memory_threshold_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="A node is refused whose memory use, in percent of its allocatable and "
            "rounded half up to a whole number, is above this. 0: never.",
        ),
    ] = 95.0
    stale_after_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="A node whose last window is older than this passes and scores 0.",
        ),
    ] = 180.0


class LogSettings(Section, frozen=True, kw_only=True):
    """What is said on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The least important message that is shown."),
    ] = "info"
    format: Annotated[
        Literal["auto", "human", "json"],
        Meta(description="auto: human on a terminal, JSON lines otherwise."),
    ] = "auto"


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that can be set, by section."""

    kafka: KafkaSettings = KafkaSettings()
    exporter: ExporterSettings = ExporterSettings()
    worker: WorkerSettings = WorkerSettings()
    model: ModelSettings = ModelSettings()
    extender: ExtenderSettings = ExtenderSettings()
    log: LogSettings = LogSettings()


def node_name(exporter: ExporterSettings, environ: Mapping[str, str]) -> str:
    """The name of this node: the setting, else `NODE_NAME`, else the host name in lower case.

    Raises SettingsError if what was found is no name that a Node can have.
    """
    if exporter.node_name is not None:
        return exporter.node_name
    given = environ.get("NODE_NAME", "")
    name, source = (given, "NODE_NAME") if given else (socket.gethostname().lower(), "host name")
    if not re.fullmatch(_NODE_NAME, name):
        raise SettingsError(
            f"{source} {name!r:.100} is no Node name",
            key="exporter.node_name",
            source=source,
            hint="set exporter.node_name: lower-case letters, digits, - and ., at most 253",
        )
    return name


def state_directory(environ: Mapping[str, str]) -> Path:
    """Where files that may be lost go: `$XDG_STATE_HOME/springtide`, else below the home folder."""
    base = environ.get("XDG_STATE_HOME", "")
    if base and Path(base).is_absolute():
        return Path(base) / "springtide"
    home = environ.get("HOME", "")
    return (Path(home) if home else Path.home()) / ".local" / "state" / "springtide"
