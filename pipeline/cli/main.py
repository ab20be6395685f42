"""The `springtide` command: a lazy group of commands, with errors of two lines.

A command is a module `pipeline.cli.<name>` (`_` for `-`) with a click command called `command`. It
is imported when it runs, so help is instant, and an exporter does not need a worker's dependencies.
"""

import errno
import fcntl
import importlib
import io
import os
import platform
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from pipeline import __version__
from pipeline.cli import INTERRUPTED
from pipeline.cli.help_sections import Group
from pipeline.cli.malloc import return_freed_memory
from pipeline.cli.options import global_options, store_global_options
from pipeline.cli.safe_output import printable
from pipeline.errors import (
    BrokerUnavailableError,
    MissingExtraError,
    SpringtideError,
    UsageError,
)

_OUR_PACKAGES = frozenset({"pipeline", "actuators", "node_exporter"})
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class _Command(NamedTuple):
    help: str
    extra: str | None  # the pip extra with its dependencies


COMMANDS = {
    "demo": _Command("Run Springtide with a broker and pods on this machine.", "local,pipeline"),
    "exporter": _Command("Sample cgroups and /proc of this node, publish windows.", None),
    "node-actuator": _Command("Hold limits in the cgroups of this node.", "pipeline"),
    "worker": _Command("Join samples with nodes and pods, predict and publish peaks.", "pipeline"),
    "extender": _Command("Answer filter and prioritize requests of a scheduler.", "pipeline"),
    "watcher": _Command("Publish nodes, pods and workloads of a cluster.", "kubernetes,pipeline"),
    "actuator": _Command(
        "Write Mid and Batch resources to the Nodes of a cluster.", "kubernetes,pipeline"
    ),
    "planner": _Command("Plan which pods leave hot nodes.", "kubernetes,pipeline"),
    "evictor": _Command("Evict pods that eviction plans name.", "kubernetes,pipeline"),
    "notifier": _Command("Send the alerts of hot nodes to Alertmanager.", "pipeline"),
    "provider": _Command(
        "Publish usage that another system measured, without exporters.", "kubernetes,pipeline"
    ),
    "webhook": _Command(
        "Apply ClusterColocationProfiles to new pods, and check pods.", "kubernetes,pipeline"
    ),
    "archive": _Command("Write windows to Parquet files, which outlive the topic.", "pipeline"),
    "topics": _Command("Create the topics, check them for drift, print them.", None),
    "kafka": _Command("Run a real Kafka broker on this machine.", "local"),
    "top": _Command("Show nodes with usage, predicted peak and age.", "pipeline"),
    "alerts": _Command("Show the alerts of hot nodes, open or past.", "pipeline"),
    "accuracy": _Command("Show how predicted peaks compared with what happened.", "pipeline"),
    "actions": _Command("Show what actuators did, or refused to do, and why.", "pipeline"),
    "score": _Command("Show the score of each node for a pod, and refusals.", "pipeline"),
    "why-not": _Command("Show whether a node accepts a pod, and why not.", "pipeline"),
    "series": _Command("Show the usage of a node or pod, window by window.", "pipeline"),
    "explain": _Command(
        "Show how the peaks of a node were computed, number by number.", "pipeline"
    ),
    "model": _Command(
        "List predictors; inspect, fit, export and import models of a node.", "pipeline"
    ),
    "plan": _Command(
        "Show which pods would leave hot nodes, and where they would land.", "pipeline"
    ),
    "backtest": _Command("Judge predictors on traces of past usage.", "pipeline"),
    "calibrate": _Command("Find the setting that saves most at a rate of violations.", "pipeline"),
    "what-if": _Command("Replay history under a policy, beside another one.", "pipeline"),
    "gaps": _Command("Show what pods left unused in traces, and what pooling saves.", "pipeline"),
    "report": _Command("Show what a cluster wastes, from its Prometheus alone.", "pipeline"),
    "recommend": _Command("Show recommended requests for the pods of each workload.", "pipeline"),
    "recommend-thresholds": _Command(
        "Propose thresholds of usage for node pools, by three sigma.", "pipeline"
    ),
    "scheduler": _Command(
        "Create and check the kube-scheduler configuration; simulate targets.", "pipeline"
    ),
    "policy": _Command("Check a colocation policy, and resolve it for each node.", "pipeline"),
    "qos-bench": _Command(
        "Measure a service beside offline work, with and without protection.", "pipeline"
    ),
    "run-in-cgroup": _Command("Start a host process in the cgroup of its application.", None),
    "doctor": _Command("Check this installation and print fixes.", None),
    "completion": _Command("Print completion of commands and flags for a shell.", None),
}


class LazyGroup(Group):
    """Imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(_module_name(cmd_name))
        except ModuleNotFoundError as error:
            raise _missing_module_error(error, cmd_name) from error
        command: click.Command = module.command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names without an import of the commands, whose extras may be missing."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=entry.help)
            for name, entry in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            failure: SpringtideError = _missing_module_error(error, ctx.invoked_subcommand or "")
            failure.__cause__ = error
        except BrokerUnavailableError as error:
            failure = _with_local_broker(error)
        except SpringtideError as error:
            failure = error
        except BrokenPipeError:
            raise  # click ends the command without a message
        except OSError as error:
            failure = _system_error(error)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        report(failure, debug=bool(store_global_options(ctx).get("debug")))
        return ctx.exit(failure.exit_code)


def report(error: SpringtideError, *, debug: bool = False) -> None:
    """Print the error and its fix on standard error, a line each."""
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    lines = f"error: {error.message}".expandtabs().split("\n")
    if error.hint:
        lines.append(f"  fix: {error.hint}")
    # Messages may contain names from records and files.
    click.echo("\n".join(map(printable, lines)), err=True)


def _with_local_broker(error: BrokerUnavailableError) -> BrokerUnavailableError:
    """Suggest a broker that runs on another port of this machine."""
    from pipeline.local.running_brokers import running_brokers  # not at the start of each command

    servers = [broker.bootstrap_servers for broker in running_brokers() if not broker.ca_file]
    if not servers or any(server in error.message for server in servers):
        return error
    hint = (
        f"a local broker runs: add --bootstrap-servers {servers[0]}, or correct "
        "kafka.bootstrap_servers and kafka.security_protocol"
    )
    suggestion = BrokerUnavailableError(error.message, hint=hint)
    suggestion.__cause__ = error
    return suggestion


def _system_error(error: OSError) -> SpringtideError:
    """Return the error for a request that the operating system refused."""
    if _is_write_error(error):
        return _write_error(error)
    target = f" {error.filename}" if error.filename else ""
    failure = SpringtideError(
        f"the system refuses access{target}: {error.strerror or error}",
        hint="check the path and its permissions; --debug shows the place in the program",
    )
    failure.__cause__ = error
    return failure


def _is_write_error(error: OSError) -> bool:
    """Whether a disk is full, or standard output was closed or opened for reading only."""
    if error.errno == errno.EBADF:
        return fcntl.fcntl(1, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    return error.errno in _NO_SPACE


def _write_error(error: OSError) -> SpringtideError:
    """Return the error for a failed write, and discard further output to standard output."""
    with suppress(OSError, AttributeError, ValueError):
        sys.stdout.flush()
    # Else the interpreter would flush the buffer at exit, fail and report again.
    with suppress(OSError, AttributeError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EBADF:
        target, hint = " to standard output", "it is closed: redirect it to a file or /dev/null"
    else:
        target = f" {error.filename}" if error.filename else ""
        hint = "free space, or write elsewhere"
    failure = SpringtideError(f"cannot write{target}: {error.strerror}", hint=hint)
    failure.__cause__ = error
    return failure


def _module_name(command: str) -> str:
    return f"pipeline.cli.{command.replace('-', '_')}"


def _missing_module_error(error: ModuleNotFoundError, command: str) -> SpringtideError:
    missing = error.name or ""
    if missing.split(".", 1)[0] in _OUR_PACKAGES:
        if missing == _module_name(command):
            return SpringtideError(
                f"`springtide {command}` is not part of this build",
                hint="install springtide again from its checkout or wheel",
            )
        raise error  # a broken installation or a bug: show the traceback
    extra = COMMANDS[command].extra if command in COMMANDS else None
    if extra is None:
        return SpringtideError(
            f"`springtide {command}` needs the module {missing!r}, which is not installed",
            hint="install springtide again from its checkout or wheel",
        )
    return MissingExtraError(f"a dependency of `springtide {command}`", extra, module=missing)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 success, 1 failure, 2 usage or settings, 3 condition not met, 4 stale or "
    "missing data, 130 interrupted. To start, run `springtide demo`; to find problems, run "
    "`springtide doctor`.",
)
@click.version_option(
    __version__, message=f"springtide %(version)s (Python {platform.python_version()})"
)
@global_options
@click.pass_context
def cli(context: click.Context, /, **given: object) -> None:
    """Springtide predicts the peak usage of each Kubernetes node, as a stream over Kafka.

    Set a setting in a YAML file, in a variable SPRINGTIDE_<SECTION>_<KEY>, or by a flag. Variables
    override the file, and flags override both.
    """
    store_global_options(context, **given)


def open_closed_streams() -> None:
    """Replace standard streams that the caller closed (`2>&-`) by /dev/null: else the next file or
    socket would get their descriptor, and what is printed. Standard output is opened for reading
    only, so that a command whose output is lost fails."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            mode = os.O_RDONLY if name == "stdout" else os.O_RDWR
            os.open(os.devnull, mode)  # takes the lowest free descriptor, which is this one
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", closefd=False))


def escape_unprintable_output() -> None:
    """Print characters that the terminal's encoding does not have as escape sequences."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise `UsageError` for an argument that is not UTF-8: no name may contain it."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"the argument {printable(argument):.200} is not UTF-8",
                hint="give names and paths in UTF-8",
            ) from None


def typed_program(path: str) -> str:
    """What a user types for the program at this path.

    >>> typed_program("/usr/bin/kubectl-springtide")
    'kubectl springtide'
    """
    is_plugin = Path(path).name == "kubectl-springtide"
    return "kubectl springtide" if is_plugin else "springtide"


def main() -> None:
    open_closed_streams()
    escape_unprintable_output()
    return_freed_memory()
    try:
        check_arguments(sys.argv[1:])
    except UsageError as error:
        report(error)
        sys.exit(error.exit_code)
    try:
        cli(prog_name=typed_program(sys.argv[0]))
    except OSError as error:
        if not _is_write_error(error):
            raise
        report(_write_error(error))
        sys.exit(SpringtideError.exit_code)


if __name__ == "__main__":
    main()
