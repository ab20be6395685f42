"""Errors can be shown and counted."""

import errno
import inspect
import pickle
import re
from socket import gaierror

import pytest

from pipeline import errors
from pipeline.errors import KernelFileError, RecordError, SettingsError, SpringtideError

ALL = [
    error
    for error in vars(errors).values()
    if inspect.isclass(error) and issubclass(error, SpringtideError)
]


@pytest.mark.parametrize("error", ALL)
def test_every_error_has_exit_code_and_docstring(error: type[SpringtideError]) -> None:
    assert error.exit_code in {1, 2, 3, 4}
    assert error.__doc__


def test_reasons_are_unique_slugs() -> None:
    reasons = [error.reason for error in ALL if issubclass(error, RecordError)]
    assert len(set(reasons)) == len(reasons)
    assert all(re.fullmatch(r"[a-z_]+", reason) for reason in reasons)


def test_kernel_error_has_its_file() -> None:
    error = KernelFileError("no number", path="/sys/fs/cgroup/cpu.stat")
    assert str(error) == "/sys/fs/cgroup/cpu.stat: no number"


def test_settings_error_has_key_and_source() -> None:
    error = SettingsError("bad", key="log.level", source="flag --log-level")
    assert (error.key, error.source, error.exit_code) == ("log.level", "flag --log-level", 2)


def test_given_hint_replaces_the_default() -> None:
    assert "springtide kafka start" in str(errors.BrokerUnavailableError("none"))
    assert str(errors.BrokerUnavailableError("none", hint="wait")) == "none (wait)"


def test_errors_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(SpringtideError("what", hint="how")))
    assert (again.message, again.hint) == ("what", "how")


@pytest.mark.parametrize(
    ("error", "port", "key", "hint"),
    [
        (OSError(errno.EADDRINUSE, "taken"), 9101, "worker.metrics_port", "any free port, null"),
        (OSError(errno.EACCES, "denied"), 80, "worker.metrics_port", "below 1024 need root"),
        (OSError(errno.EACCES, "denied"), 9101, "worker.metrics_port", None),
        (OSError(errno.EMFILE, "too many"), 9101, "worker.metrics_port", None),
        (OSError(errno.EADDRNOTAVAIL, "no"), 0, "worker.metrics_host",
         "set worker.metrics_host to"),
        (gaierror(-2, "unknown"), 0, "worker.metrics_host", "an address of this machine"),
    ],
)  # fmt: skip
def test_listen_error_names_the_setting_at_fault(
    error: OSError, port: int, key: str, hint: str | None
) -> None:
    found = SettingsError.listening(error, "node", port, "worker.metrics_port")
    assert found.key == key
    assert found.hint is None if hint is None else hint in str(found.hint)
