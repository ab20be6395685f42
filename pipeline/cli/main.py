"""The `springtide` command: commands by name, loaded when asked for; errors as two lines.

A command is a module `pipeline.cli.<name>` (`_` for `-`) with a click command called `command`. It
is imported when it is run, so that help is instant and an exporter needs nothing that only a worker
has.
"""

import ctypes
import errno
import importlib
import os
import platform
import sys
import traceback
from contextlib import suppress
from typing import Any, NamedTuple

import click

from pipeline import __version__
from pipeline.cli import INTERRUPTED
from pipeline.cli.options import global_options, remember_globals
from pipeline.errors import MissingExtraError, SpringtideError

_OURS = frozenset({"pipeline", "actuators", "node_exporter"})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_M_ARENA_MAX = -8  # of glibc's mallopt


class _Entry(NamedTuple):
    help: str
    extra: str | None  # which pip extra brings what it needs


COMMANDS = {
    "demo": _Entry(
        "See it all run on this machine: broker, exporter, worker, extender.", "local,pipeline"
    ),
    "exporter": _Entry("Sample this node's cgroups and /proc, publish windows.", None),
    "worker": _Entry("Join samples with what is known, predict peaks, publish them.", "pipeline"),
    "extender": _Entry("Answer a scheduler's filter and prioritize questions.", "pipeline"),
    "watcher": _Entry(
        "Keep nodes, pods and workloads of a cluster on the topics.", "kubernetes,pipeline"
    ),
    "actuator": _Entry("Write Mid and Batch to the Nodes of a cluster.", "kubernetes,pipeline"),
    "evictor": _Entry("Evict pods that a plan wants to leave their node.", "kubernetes,pipeline"),
    "provider": _Entry(
        "Bring usage from Prometheus or metrics-server, without exporters.", "kubernetes,pipeline"
    ),
    "topics": _Entry("Create the topics, check them for drift, print their table.", None),
    "kafka": _Entry("Run a real Kafka broker on this machine.", "local"),
    "top": _Entry("Show nodes with usage, predicted peak and age.", "pipeline"),
    "score": _Entry("Show how good each node would be for a pod, and who refuses it.", "pipeline"),
    "why-not": _Entry("Show whether a node would take a pod, and why not.", "pipeline"),
    "series": _Entry("Show what a node or a pod used, window by window.", "pipeline"),
    "explain": _Entry("Show how a node's peaks came about, number by number.", "pipeline"),
    "model": _Entry(
        "List predictors; look into, fit, export and import a node's models.", "pipeline"
    ),
    "recommend": _Entry("Show what pods of each owner should ask for.", "pipeline"),
    "scheduler": _Entry(
        "Make and check kube-scheduler's side of the extender; try targets.", "pipeline"
    ),
    "policy": _Entry("Check a colocation policy, and what it is for each node.", "pipeline"),
    "doctor": _Entry("Check this installation and say what to do.", None),
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(_module_of(cmd_name))
        except ModuleNotFoundError as error:
            raise _missing(error, cmd_name) from error
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            failure: SpringtideError = _missing(error, ctx.invoked_subcommand or "")
            failure.__cause__ = error
        except SpringtideError as error:
            failure = error
        except OSError as error:
            if error.errno not in _FULL:
                raise
            failure = _full(error)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        report(failure, debug=bool(remember_globals(ctx).get("debug")))
        return ctx.exit(failure.exit_code)


def report(error: SpringtideError, *, debug: bool = False) -> None:
    """On standard error: a line with what went wrong, a line with what to do about it."""
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    click.echo(f"error: {error.message}", err=True)
    if error.hint:
        click.echo(f"  fix: {error.hint}", err=True)


def _full(error: OSError) -> SpringtideError:
    """What to say of a place with no room; nothing more is written to a stdout that has none."""
    with suppress(OSError, AttributeError, ValueError):
        sys.stdout.flush()
    # What is still in its buffer would fail once more at the very end, and be told again.
    with suppress(OSError, AttributeError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    what = f" {error.filename}" if error.filename else ""
    failure = SpringtideError(
        f"cannot write{what}: {error.strerror}", hint="make room there, or write elsewhere"
    )
    failure.__cause__ = error
    return failure


def _module_of(command: str) -> str:
    return f"pipeline.cli.{command.replace('-', '_')}"


def _missing(error: ModuleNotFoundError, command: str) -> SpringtideError:
    missing = error.name or ""
    if missing.split(".", 1)[0] in _OURS:
        if missing == _module_of(command):
            return SpringtideError(
                f"`springtide {command}` is not part of this build",
                hint="install the whole of the distribution `springtide`",
            )
        raise error  # a broken installation or a mistake of ours: the traceback is wanted
    extra = COMMANDS[command].extra if command in COMMANDS else None
    if extra is None:
        return SpringtideError(
            f"`springtide {command}` needs the module {missing!r}, which is not installed",
            hint="pip install --force-reinstall springtide",
        )
    return MissingExtraError(f"what `springtide {command}` needs", extra, module=missing)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 fine, 1 failure, 2 usage or settings, 3 condition found, 4 stale or "
    "missing data, 130 interrupted. Start with `springtide demo`; when something is wrong, with "
    "`springtide doctor`.",
)
@click.version_option(
    __version__, message=f"springtide %(version)s (Python {platform.python_version()})"
)
@global_options
@click.pass_context
def cli(context: click.Context, /, **given: object) -> None:
    """Springtide: the peak that each Kubernetes node will really reach, as a stream over Kafka.

    Every setting of a command can be given in a YAML file, as a variable SPRINGTIDE_<SECTION>_<KEY>
    or as a flag; the later wins.
    """
    remember_globals(context, **given)


def share_one_heap() -> None:
    """Have all threads of this process allocate from one heap, if that is glibc's to say.

    It gives threads heaps of their own otherwise: what a worker's consumer takes for messages and
    its models give back would stay with the consumer, a tenth of the process. Only what has no
    heap yet can be told, so nothing that starts threads may be imported before.
    """
    chosen = "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", "")
    if not chosen:
        with suppress(AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def main() -> None:
    """What the script `springtide` runs."""
    share_one_heap()
    try:
        cli(prog_name="springtide")
    except OSError as error:
        if error.errno not in _FULL:
            raise
        report(_full(error))
        sys.exit(SpringtideError.exit_code)


if __name__ == "__main__":
    main()
