"""Decorators that add settings as flags to a command.

    @click.command()
    @settings_options(*KAFKA_CLIENT, "exporter.*")
    def command(settings: Settings) -> None: ...

adds a flag for each key (`kafka.bootstrap_servers` is `--bootstrap-servers`), loads settings from
file, environment and flags, configures logging, and calls the command with the settings.
"""

import fnmatch
import functools
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import click

from pipeline.cli.duration_option import SettingSeconds
from pipeline.cli.help_sections import SecondaryOption
from pipeline.logs import configure_logging
from pipeline.settings import Settings, describe_settings, flag_name, load_settings
from pipeline.settings.describe import (
    SettingDescription,
    is_secret,
    leaf_types,
    plain_types,
    written,
)

# Keys for a command that connects to Kafka.
KAFKA_CLIENT = (
    "kafka.bootstrap_servers",
    "kafka.topic_prefix",
    "kafka.security_protocol",
    "kafka.sasl_mechanism",
    "kafka.sasl_username",
    "kafka.ssl_ca_file",
    "kafka.ssl_cert_file",
    "kafka.ssl_key_file",
    "kafka.request_timeout_seconds",
)

# Keys for a command that connects to the API server.
KUBERNETES_CLIENT = (
    "kubernetes.kubeconfig",
    "kubernetes.context",
    "kubernetes.namespace",
    "kubernetes.config_namespace",
    "kubernetes.config_name",
)

# Keys on which the decisions of an extender depend.
DECISION_RULES = (
    "extender.cpu_threshold_percent",
    "extender.memory_threshold_percent",
    "extender.stale_after_seconds",
    "extender.scheduler_config_file",
    "extender.scheduler_name",
    "extender.fine_scores",
    "extender.in_flight",
)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_PARAMETER = "setting__"
_GLOBAL = ("config", "debug", "log_level", "log_format")


_FORMATS = ("table", "json", "wide")
_OUTPUT_HELP = "Output format; wide is a table with all columns"

output_option = click.option(
    "-o", "--output", "as_json", type=click.Choice(_FORMATS), default="table", show_default=True,
    help=f"{_OUTPUT_HELP}.", callback=lambda _context, _parameter, value: value == "json",
)  # fmt: skip
"""`-o table|json|wide` of a command whose table always has all columns: it gets `as_json`."""


def output_formats(*more: str, help: str = "") -> Callable[[FunctionT], FunctionT]:
    """Decorator: `-o table|json|wide`, and `more` formats that `help` describes, as `output`."""
    return click.option(
        "-o", "--output", type=click.Choice([*_FORMATS, *more]), default="table",
        show_default=True, help=f"{_OUTPUT_HELP}{help}.",
    )  # fmt: skip


def global_options(function: FunctionT, kind: type[click.Option] = click.Option) -> FunctionT:
    """`--config`, `--log-level`, `--log-format`, `--debug`: before or after the command's name; all
    but the first of this `kind`."""
    types = leaf_types()
    for decorate in (
        click.option(
            "--debug", cls=kind, is_flag=True, default=None, help="Print tracebacks of errors."
        ),
        click.option(
            "--log-format",
            cls=kind,
            type=click.Choice(get_args(plain_types(types["log.format"])[0])),
            help="Log format; auto is human on a terminal, else JSON.",
        ),
        click.option(
            "--log-level",
            cls=kind,
            type=click.Choice(get_args(plain_types(types["log.level"])[0])),
            help="Lowest level that is logged.  [default: info]",
        ),
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Settings file (YAML).  [env: SPRINGTIDE_CONFIG]",
        ),
    ):
        function = decorate(function)
    return function


def store_global_options(context: click.Context, **given: object) -> dict[str, Any]:
    """Store global options, those nearer to the command override others. Return them all."""
    values: dict[str, Any] = context.find_root().ensure_object(dict)
    values.update({name: value for name, value in given.items() if value is not None})
    return values


def settings_options(
    *keys: str, shown: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: add flags for these dotted keys; `section.*` is every key of a section.

    `--help` has the flags of the keys `shown` alone, `--help-all` has all. The command receives the
    loaded `Settings` as the argument `settings`. Secrets have no flag, because command lines are
    visible to all users of the machine.
    """
    descriptions = _select_settings(keys)
    if unknown := {*shown} - {setting.key for setting in descriptions}:
        raise ValueError(f"no flags of this command: {sorted(unknown)}")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(**parameters: Any) -> Any:
            given = {name: parameters.pop(name) for name in _GLOBAL}
            values = store_global_options(click.get_current_context(), **given)
            overrides = {
                setting.key: value
                for setting in descriptions
                if (value := parameters.pop(_parameter(setting.key))) is not None
            }
            for name in ("level", "format"):
                if f"log_{name}" in values:
                    overrides[f"log.{name}"] = values[f"log_{name}"]
            settings = load_settings(_settings_file(values), os.environ, overrides)
            configure_logging(settings.log.level, settings.log.format)
            return function(settings=settings, **parameters)

        decorated: Callable[..., Any] = global_options(run, SecondaryOption)
        for setting in reversed(descriptions):
            kind = click.Option if setting.key in shown else SecondaryOption
            decorated = _setting_option(setting, kind)(decorated)
        return decorated

    return decorate


def silence_logs(settings: Settings, logger: str | None = None) -> None:
    """Suppress logs of this logger (default: all), in a command that prints and reports errors
    itself; level debug shows them."""
    if settings.log.level != "debug":
        logging.getLogger(logger).setLevel(logging.CRITICAL)


def _settings_file(values: dict[str, Any]) -> Path | None:
    # Not by click's envvar: the option exists twice, and the one nearer to the command wins.
    path: Path | None = values.get("config")
    if path is None and (name := os.environ.get("SPRINGTIDE_CONFIG")):
        path = Path(name)
    return path


def _select_settings(keys: tuple[str, ...]) -> list[SettingDescription]:
    flag_keys = [key for key, kind in leaf_types().items() if not is_secret(kind)]
    selected: dict[str, None] = {}
    for key in keys:
        matching = fnmatch.filter(flag_keys, key)
        if not matching:
            raise ValueError(f"no setting {key!r}")
        selected.update(dict.fromkeys(matching))
    flags: dict[str, str] = {}
    for key in selected:
        other = flags.setdefault(flag_name(key), key)
        if other != key:
            raise ValueError(f"{flag_name(key)} would be both {other} and {key}")
    return [setting for setting in describe_settings() if setting.key in selected]


def _parameter(key: str) -> str:
    return _PARAMETER + key.replace(".", "__")


def _setting_option(
    setting: SettingDescription, kind: type[click.Option]
) -> Callable[[FunctionT], FunctionT]:
    types = plain_types(leaf_types()[setting.key])
    help = f"{setting.doc}  [{setting.key}, default: {written(setting.default)}]"
    flag = flag_name(setting.key)
    if types[0] is bool:
        negative = f"--no-{flag.removeprefix('--')}"
        return click.option(
            f"{flag}/{negative}", _parameter(setting.key), cls=kind, default=None, help=help
        )
    # Values are text: the settings validate them, with the same errors for every source.
    return click.option(
        flag,
        _parameter(setting.key),
        cls=kind,
        type=SettingSeconds() if "_seconds" in setting.key else str,
        metavar=_metavar(setting.key, types[0]),
        help=help,
    )


def _metavar(key: str, kind: Any) -> str:
    if getattr(kind, "__origin__", None) is Literal:
        return "|".join(get_args(kind))
    if "_seconds" in key:
        return "DURATION"
    if key.endswith("_file"):
        return "PATH"
    return {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH"}.get(kind, "YAML")
