"""All errors that Springtide raises deliberately.

`message` says what happened, with the value and its place; `hint` says what to do. `exit_code` is
the exit code of the command: 1 failure, 2 invalid usage or settings, 3 condition found, 4 stale or
missing data.
"""

import errno
from socket import gaierror
from typing import ClassVar, Final, Self

_NO_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def install_hint(extra: str) -> str:
    """How to install an extra, which is in no package registry."""
    return f"pip install '.[{extra}]' in a checkout of springtide, or './springtide-*.whl[{extra}]'"


def unanswered_reason(error: Exception) -> str:
    """Why an HTTP request got no answer, for any error of aiohttp, whose own text of a failed
    connection has "ssl:default", for http, too."""
    cause = getattr(error, "os_error", error)
    text = str(cause) or type(error).__name__
    host = getattr(error, "host", None)
    return f"cannot connect to {host}:{getattr(error, 'port', None)}: {text}" if host else text


class SpringtideError(Exception):
    """Root of the tree: `message` is the problem and its place, `hint` the remedy."""

    exit_code: ClassVar[int] = 1
    default_hint: ClassVar[str | None] = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint if hint is not None else self.default_hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class SettingsError(SpringtideError, ValueError):
    """A setting is invalid. `key` is dotted; `source` is its file, variable or flag."""

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        source: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.key = key
        self.source = source

    @classmethod
    def listening(
        cls, error: Exception, host: str, port: int, key: str, *, or_none: bool = True
    ) -> Self:
        """Build the error for a failure to listen on an address.

        `key` is the setting of the port, which may be null if `or_none`.
        """
        number, hint = getattr(error, "errno", None), None
        if number == errno.EADDRINUSE:
            none = ", null for no page" if or_none else ""
            hint = f"the port is in use: set {key} to another port, 0 for any free port{none}"
        elif number == errno.EACCES and 0 < port < 1024:
            hint = f"ports below 1024 need root: set {key} to another"
        elif number in _NO_ADDRESS or isinstance(error, gaierror):
            key = f"{key.removesuffix('port')}host"
            hint = f"set {key} to an address of this machine, or to 0.0.0.0 for all addresses"
        return cls(f"cannot listen on {host}:{port}: {error}", key=key, hint=hint)


class PredictorError(SettingsError):
    """A predictor in the settings is not installed, refuses its options, or fails."""

    default_hint = (
        "correct model.predictors and its options, or update the package that "
        "`springtide model predictors` shows"
    )


class UsageError(SpringtideError):
    """The command line is invalid."""

    exit_code = 2


class MissingExtraError(SpringtideError, ImportError):
    """An optional dependency is not installed."""

    exit_code = 2

    def __init__(self, what: str, extra: str, *, module: str | None = None) -> None:
        missing = f": no module named {module!r}" if module else ""
        super().__init__(f"{what} is not installed{missing}", hint=install_hint(extra))


class RecordError(SpringtideError, ValueError):
    """A record is refused; processing continues with the next one.

    `reason` is the slug in the dead-letter header and in the metric's label.
    """

    reason: ClassVar[str] = "refused"


class UndecodableRecordError(RecordError):
    """The topic's codec cannot decode the bytes: truncated, empty, or another format."""

    reason = "undecodable"


class UnreadableRecordError(RecordError):
    """The broker accepted bytes that are no record of Kafka's format, or unpack to too many."""

    reason = "unreadable"


class UnsupportedVersionError(RecordError):
    """This release does not support the major version of the record."""

    reason = "unsupported_version"
    default_hint = "upgrade the readers before the writers"


class InvalidRecordError(RecordError):
    """The record is decoded, but a field violates the topic's contract."""

    reason = "invalid"


class KeyMismatchError(RecordError):
    """Payload and record key name different nodes or entities."""

    reason = "key_mismatch"


class UnknownNodeError(RecordError):
    """The record is about a node that does not exist."""

    reason = "unknown_node"


class FutureWindowError(RecordError):
    """The window ends too far ahead of the broker's append time."""

    reason = "future_window"
    default_hint = "synchronize the clock of the node by NTP"


class OversizedRecordError(RecordError):
    """The record exceeds the size limit of its topic."""

    reason = "oversized"


class FailedSampleError(RecordError):
    """A sample could not be joined, although it is valid: a bug."""

    reason = "unjoined"
    default_hint = "report the error with the record of the topic dead-letters"


class FailedWindowError(RecordError):
    """The models could not apply a window; it is skipped."""

    reason = "failed"
    default_hint = "the error names the cause: a bug, or a predictor of another package"


class KafkaError(SpringtideError):
    """Kafka fails, other than by the content of a record."""


class TopicDeniedError(KafkaError):
    """The broker denies access to a topic: `topic` is its full name, empty if it is not known."""

    def __init__(self, message: str, topic: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.topic = topic


class BrokerUnavailableError(KafkaError):
    """No broker answers at the bootstrap servers."""

    default_hint = (
        "start a broker with `springtide kafka start`, or correct kafka.bootstrap_servers and "
        "kafka.security_protocol"
    )


class TopicDriftError(KafkaError):
    """A topic is missing, or differs from the registry."""

    exit_code = 3
    default_hint = "create or correct it with `springtide topics apply`"


class PartitionCountError(TopicDriftError):
    """A topic has another number of partitions than the settings: nothing corrects that later."""


class LocalKafkaError(KafkaError):
    """The local broker cannot be prepared, started or stopped."""


class ControlPlaneError(SpringtideError):
    """The local control plane failed; the message contains the end of a log."""


class ControlPlaneBuildError(ControlPlaneError):
    """The programs of the local control plane cannot be built."""


class KernelError(SpringtideError):
    """Reading cgroups or /proc failed; `path` is the file."""

    def __init__(self, message: str, *, path: str, hint: str | None = None) -> None:
        super().__init__(f"{path}: {message}", hint=hint)
        self.path = path


class KernelFileError(KernelError, ValueError):
    """A file of the kernel exists but cannot be read or parsed."""


class CgroupGoneError(KernelError):
    """The cgroup was removed during the read, because its pod or process ended."""


class CgroupWriteError(KernelError):
    """The kernel does not take a value. `reason` is the label in metrics."""

    def __init__(self, message: str, *, reason: str, path: str, hint: str | None = None) -> None:
        super().__init__(message, path=path, hint=hint)
        self.reason = reason


class ContainerRuntimeError(SpringtideError):
    """A container runtime breaks the protocol of NRI, or refuses the node actuator as a plugin."""


class KubernetesError(SpringtideError):
    """A request to the API server failed.

    `status` is the HTTP status of the answer, None if there was none; `causes` are the reasons that
    the answer gives in detail.
    """

    status: int | None = None
    causes: tuple[str, ...] = ()


class ApiUnavailableError(KubernetesError):
    """No answer, or an answer that asks to retry (429, 5xx).

    `retry_after_seconds` is from the answer. `was_done` says whether the request took effect; None
    is unknown.
    """

    default_hint = "check kubernetes.kubeconfig, and that the API server is running"

    def __init__(
        self,
        message: str,
        *,
        retry_after_seconds: float | None = None,
        was_done: bool | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_seconds = retry_after_seconds
        self.was_done = was_done


class ApiRefusedError(KubernetesError):
    """The API server refuses the request, with this `reason` in its Status; a proxy gives none."""

    def __init__(self, message: str, *, reason: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class NotFoundError(ApiRefusedError):
    """The object does not exist."""


class ConflictError(ApiRefusedError):
    """The object was changed concurrently, or its name is already used."""


class GoneError(ApiRefusedError):
    """The requested resource version or page has expired: list again."""


class ForbiddenError(ApiRefusedError):
    """RBAC denies the request, or (a subclass) it is not authenticated."""

    default_hint = "grant the permissions of the role in deploy/chart/rbac"


class UnauthenticatedError(ForbiddenError):
    """The API server does not accept the credentials."""

    default_hint = "renew the token or certificate of kubernetes.kubeconfig; RBAC is not the cause"


class SampleSourceError(SpringtideError):
    """A source of usage, such as Prometheus, does not answer as expected.

    `may_pass` says that the same request may succeed later.
    """

    default_hint = "compare the source with its requirements in docs/reference/provider.md"

    def __init__(self, message: str, *, may_pass: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.may_pass = may_pass


class QueryTooLargeError(SampleSourceError):
    """Prometheus refuses a query that would load more samples than its limit, or is too slow for
    it: a shorter one may succeed."""


class InvalidPolicyError(SpringtideError, ValueError):
    """A part of `slo-controller-config`, of an annotation or of a label is invalid."""


class StateError(SpringtideError):
    """Model state is invalid."""


class ArchiveError(SpringtideError):
    """An archive is in use, damaged, of another topic, or cannot be written."""


class CheckpointError(StateError, ValueError):
    """A checkpoint cannot be read, or does not fit the model."""


class CheckpointLayoutError(CheckpointError):
    """Models of another layout (half-lives, buckets or statistic) wrote the checkpoint."""


class BadRequestError(SpringtideError, ValueError):
    """An HTTP request is invalid; it is answered with status 400."""


class NotReadyError(SpringtideError):
    """Data is missing, stale or still being loaded."""

    exit_code = 4


class OverloadedError(SpringtideError):
    """Concurrent requests exceed the memory limit; the answer has status 503."""


class DemoError(SpringtideError):
    """A part of the demo did not start, or ended early; the message contains the end of its log."""
