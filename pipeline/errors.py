"""Every error that Springtide raises on purpose, in one tree.

    SpringtideError
    ├── SettingsError (ValueError)        a setting is wrong: key, value, source, what is allowed
    │   └── PredictorError                a predictor is unknown or does not take its options
    ├── UsageError                        the command line asks for something impossible
    ├── MissingExtraError (ImportError)   an optional dependency is not installed
    ├── RecordError (ValueError)          one record is refused; `reason` goes to the dead letters
    │   ├── UndecodableRecordError        the bytes are not what the topic's codec reads
    │   ├── UnsupportedVersionError       a major version that this release does not know
    │   ├── InvalidRecordError            decoded, but a field breaks the topic's contract
    │   ├── KeyMismatchError              the payload speaks of another node than its key
    │   ├── FutureWindowError             the window ends too far ahead of the broker's clock
    │   └── OversizedRecordError          larger than the topic takes
    ├── KafkaError
    │   ├── BrokerUnavailableError        no broker answers
    │   ├── TopicDriftError               a topic is missing or not what the registry declares
    │   └── LocalKafkaError               the local broker
    │       ├── JarFetchError             the jars could not be fetched
    │       ├── JarChecksumError          a jar is not the one that was tested
    │       ├── JavaNotFoundError         no Java of a sufficient version
    │       └── BrokerStartError          the broker did not become ready
    ├── KubernetesError                   the API server
    │   ├── ApiUnavailableError           no answer, or one that says: later
    │   └── ApiRefusedError               it does not do what it was asked for
    │       ├── NotFoundError             there is no such object
    │       ├── ConflictError             somebody else has changed or made it
    │       ├── GoneError                 what was asked for lies too far back
    │       └── ForbiddenError            not allowed, or nobody that it knows
    ├── ProviderError                     a source of usage does not say what it was asked for
    ├── ControlPlaneError                 the local Kubernetes control plane
    │   └── ControlPlaneBuildError        its programs could not be built
    ├── KernelError                       reading cgroups or /proc
    │   ├── KernelFileError (ValueError)  a file is there but cannot be read or understood
    │   └── CgroupGoneError               the cgroup was removed while it was read
    ├── InvalidPolicyError (ValueError)   a part of the users' policy cannot be used
    ├── StateError                        model state
    │   └── CheckpointError (ValueError)  a checkpoint cannot be read or does not fit
    │       └── CheckpointLayoutError     it was written by models of another layout
    ├── BadRequestError (ValueError)      an HTTP request that is not the question it should be
    ├── NotReadyError                     data is stale, missing or still being loaded
    ├── OverloadedError                   more is asked at once than there is memory for
    └── DemoError                         a part of the demo did not come up, or ended

An error says what went wrong and where in its message, and what to do in `hint`. `exit_code` is
what the command line ends with: 1 failure, 2 usage, 3 condition found, 4 stale or missing data.
"""

import errno
from socket import gaierror
from typing import ClassVar, Final, Self

_NO_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def install_hint(extra: str) -> str:
    """How to install an extra, which is in no package registry."""
    return f"pip install '.[{extra}]' in a checkout of springtide, or './springtide-*.whl[{extra}]'"


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
    """A setting is wrong. `key` is dotted, `source` says where the value came from."""

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
        """For an address that cannot be listened on; `key` is that of the port, which may be null
        if `or_none`."""
        number, hint = getattr(error, "errno", None), None
        if number == errno.EADDRINUSE:
            none = ", null for none" if or_none else ""
            hint = f"another process has the port: set {key} to another, 0 for any free one{none}"
        elif number == errno.EACCES and 0 < port < 1024:
            hint = f"ports below 1024 are for root: set {key} to another"
        elif number in _NO_ADDRESS or isinstance(error, gaierror):
            key = f"{key.removesuffix('port')}host"
            hint = f"set {key} to an address of this machine, or to 0.0.0.0 for all of them"
        return cls(f"cannot listen on {host}:{port}: {error}", key=key, hint=hint)


class PredictorError(SettingsError):
    """A predictor that is named in the settings is not there, or does not take its options."""


class UsageError(SpringtideError):
    """The command line asks for something that cannot be done."""

    exit_code = 2


class MissingExtraError(SpringtideError, ImportError):
    """A part is used whose optional dependency is not installed; `extra` names it."""

    exit_code = 2

    def __init__(self, what: str, extra: str, *, module: str | None = None) -> None:
        missing = f": no module named {module!r}" if module else ""
        super().__init__(f"{what} is not installed{missing}", hint=install_hint(extra))
        self.extra = extra


class RecordError(SpringtideError, ValueError):
    """One record is refused and costs nothing but itself.

    `reason` is a short slug, the same in the dead-letter header and in the metric's label. `topic`,
    `partition` and `offset` say where the record lies, once whoever consumes it has filled them in
    with `at()`: a codec does not know them.
    """

    reason: ClassVar[str] = "refused"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.topic: str | None = None
        self.partition: int | None = None
        self.offset: int | None = None

    def at(self, topic: str, partition: int, offset: int) -> Self:
        """The same error, which now says where its record lies."""
        self.topic, self.partition, self.offset = topic, partition, offset
        return self

    def __str__(self) -> str:
        text = super().__str__()
        if self.topic is None:
            return text
        return f"{self.topic}[{self.partition}]@{self.offset}: {text}"


class UndecodableRecordError(RecordError):
    """The bytes are not what the topic's codec reads (truncated, another format, empty)."""

    reason = "undecodable"


class UnsupportedVersionError(RecordError):
    """A major version that this release does not know."""

    reason = "unsupported_version"
    default_hint = "upgrade the readers before the writers"


class InvalidRecordError(RecordError):
    """Decoded, but a field breaks the topic's contract."""

    reason = "invalid"


class KeyMismatchError(RecordError):
    """The payload speaks of another node (or entity) than the record key."""

    reason = "key_mismatch"


class FutureWindowError(RecordError):
    """The window ends further ahead of the broker's append time than is tolerated."""

    reason = "future_window"
    default_hint = "set the clock of the node (NTP)"


class OversizedRecordError(RecordError):
    """The record is larger than its topic takes."""

    reason = "oversized"


class KafkaError(SpringtideError):
    """Something about Kafka, other than the content of a record."""


class BrokerUnavailableError(KafkaError):
    """No broker answers at the bootstrap servers."""

    default_hint = (
        "start one with `springtide kafka start` or set kafka.bootstrap_servers; one that is there "
        "must speak kafka.security_protocol"
    )


class TopicDriftError(KafkaError):
    """A topic is missing, or is not what the registry declares."""

    exit_code = 3
    default_hint = "create or mend it with `springtide topics apply`"


class LocalKafkaError(KafkaError):
    """The local broker could not be prepared, started or stopped."""


class JarFetchError(LocalKafkaError):
    """The jars could not be fetched."""


class JarChecksumError(LocalKafkaError):
    """A jar is not the one that was tested: its SHA-256 differs."""


class JavaNotFoundError(LocalKafkaError):
    """No Java of a sufficient version was found."""


class BrokerStartError(LocalKafkaError):
    """The broker did not become ready; the message carries the end of its log."""


class ControlPlaneError(SpringtideError):
    """The local control plane could not be started or stopped; carries the end of a log."""


class ControlPlaneBuildError(ControlPlaneError):
    """The programs of the local control plane are not there and could not be built."""


class KernelError(SpringtideError):
    """Reading cgroups or /proc failed; `path` is the file."""

    def __init__(self, message: str, *, path: str, hint: str | None = None) -> None:
        super().__init__(f"{path}: {message}", hint=hint)
        self.path = path


class KernelFileError(KernelError, ValueError):
    """A file of the kernel is there but cannot be read or understood."""


class CgroupGoneError(KernelError):
    """The cgroup was removed while it was read: its pod or process has ended."""


class KubernetesError(SpringtideError):
    """The API server does not do what it was asked for."""


class ApiUnavailableError(KubernetesError):
    """No answer, or one that says: later (429, 5xx). `retry_after_seconds` where it says when;
    `was_done` is None where it may have done what it was asked for, or not."""

    default_hint = "check kubernetes.kubeconfig, and whether the API server runs"

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
    """It answers, and does not do it."""


class NotFoundError(ApiRefusedError):
    """There is no such object."""


class ConflictError(ApiRefusedError):
    """Somebody else has changed the object, or there is one of that name."""


class GoneError(ApiRefusedError):
    """A version, or a page, that lies too far back: list again."""


class ForbiddenError(ApiRefusedError):
    """What is asked for is not allowed, or it does not know who asks."""

    default_hint = "see deploy/rbac for what each role needs"


class ProviderError(SpringtideError):
    """A source of usage, such as Prometheus, does not answer, or not with what it was asked for.
    `may_pass` says that the same question may be answered later."""

    default_hint = "check provider.url, and what stands in docs/reference/provider.md"

    def __init__(self, message: str, *, may_pass: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.may_pass = may_pass


class InvalidPolicyError(SpringtideError, ValueError):
    """A part of `slo-controller-config`, of an annotation or of a label cannot be used."""


class StateError(SpringtideError):
    """Model state is not what it must be."""


class CheckpointError(StateError, ValueError):
    """A checkpoint cannot be read, or does not fit the model that should take it over."""


class CheckpointLayoutError(CheckpointError):
    """A checkpoint was written by models of another layout: half-lives, buckets or statistic."""


class BadRequestError(SpringtideError, ValueError):
    """An HTTP request that is not the question it should be; the answer is a status of 400."""


class NotReadyError(SpringtideError):
    """Data is missing, stale or still being loaded."""

    exit_code = 4


class OverloadedError(SpringtideError):
    """More is asked at once than may be held in memory; the answer is a status of 503."""


class DemoError(SpringtideError):
    """A part of the demo did not come up, or ended; the message carries the end of its log."""
