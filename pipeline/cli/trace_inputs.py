"""The traces that a command reads: of a folder, of an archive, or of the live log."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from pipeline.cli.duration_option import Duration
from pipeline.cli.help_sections import SecondaryOption
from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.malloc import keep_freed_memory
from pipeline.cli.model_export import require_new
from pipeline.cli.options import KAFKA_CLIENT, silence_logs
from pipeline.cli.past_time_option import PastTime
from pipeline.cli.safe_output import print_progress, printable
from pipeline.errors import UsageError
from pipeline.processors.backtest.trace import Trace
from pipeline.settings import ModelSettings, Settings
from pipeline.sources.logged_traces import EVERYTHING, Span, archive_trace, is_archive, topic_trace
from pipeline.sources.trace_folders import datasets, has_traces, is_input, read_dataset

LIVE: Final = "live"
"""The name of the data set of the live log."""

INPUT_SETTINGS: Final = (*KAFKA_CLIENT, "kafka.partitions", "model.training_statistic")
"""The settings that a command with these inputs needs."""

STATISTIC: Final = ModelSettings().training_statistic
"""The statistic of usage that models learn by default."""

_PROGRESS_SECONDS: Final = 2.0

dataset_option: Final = click.option(
    "--dataset", "names", cls=SecondaryOption, multiple=True,
    help="Only this data set; may be repeated.",
)  # fmt: skip
scenario_option: Final = click.option(
    "--scenario", "scenarios", cls=SecondaryOption, multiple=True,
    help="Only this scenario; may be repeated.",
)  # fmt: skip
resource_option: Final = click.option(
    "--resource", "resources", cls=SecondaryOption, type=click.Choice(["cpu", "memory"]),
    multiple=True, help="Only this resource; may be repeated.",
)  # fmt: skip
burn_in_option: Final = click.option(
    "--burn-in", cls=SecondaryOption, type=Duration(),
    help="Time before the first scored prediction.",
)  # fmt: skip
stride_option: Final = click.option(
    "--stride", cls=SecondaryOption, type=Duration(), help="Time between scored predictions."
)


class TraceInput(NamedTuple):
    """Data sets by name, and a function that reads one: a trace for each scenario. `title` names
    the input in errors; `folder` is where it is, None for the live log."""

    title: str
    names: Sequence[str]
    read_dataset: Callable[[str], list[Trace]]
    folder: Path | None = None

    def require_new(
        self, results: Iterable[Path | None], files: Iterable[Path | None] = (), *, overwrite: bool
    ) -> None:
        """Raise `UsageError` for a result that cannot be written (`model_export.require_new`), or
        would replace a part of the input or one of these files, which the command reads."""
        for path in filter(None, results):
            require_new(path, overwrite=overwrite)
            is_read = path.resolve() in [file.resolve() for file in filter(None, files)]
            if is_read or (self.folder is not None and is_input(self.folder, path)):
                raise UsageError(f"{path} is a file that is read", hint="give another path")

    def chosen(self, names: Iterable[str] = ()) -> list[str]:
        """These data sets, by default all. Raises `UsageError` for one that is not there."""
        wanted = [*dict.fromkeys(names)] or [*self.names]
        if missing := [name for name in wanted if name not in self.names]:
            raise UsageError(
                f"{self.title} has no data set {missing[0]!r:.100}",
                hint=f"it has {', '.join(self.names[:10])}",
            )
        return wanted

    def read(self, name: str) -> Iterator[Trace]:
        """The traces of a data set; reports on standard error what is unknown or left out."""
        traces = self.read_dataset(name)
        for note in dict.fromkeys(note for trace in traces for note in trace.notes):
            click.echo(printable(f"{name}: {note}"), err=True)
        yield from traces


def trace_input_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator below `settings_options`: `FOLDER`, or `--live`, with `--since` and `--until`; the
    command gets `inputs`, a `TraceInput`.

    The command needs `INPUT_SETTINGS`.
    """
    folder = click.argument("folder", type=click.Path(path_type=Path), required=False)
    return _with_inputs(function, folder, "FOLDER")


def trace_input_unless(option: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same; `inputs` is None where this option of the command is given."""
    folder = click.argument("folder", type=click.Path(path_type=Path), required=False)
    return lambda function: _with_inputs(function, folder, "FOLDER", unless=option)


def optional_trace_input(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with `--trace` in place of `FOLDER`; `inputs` is None without an input."""
    folder = click.option(
        "--trace", "folder", type=click.Path(path_type=Path),
        help="Read the traces in this folder, or an archive.",
    )  # fmt: skip
    return _with_inputs(function, folder, "--trace")


def _with_inputs(
    function: Callable[..., Any],
    folder_parameter: Callable[..., Any],
    name: str,
    unless: str = "",
) -> Callable[..., Any]:
    @wraps(function)
    def run(
        settings: Settings, folder: Path | None, live: bool, since: float | None,
        until: float | None, **parameters: Any,
    ) -> Any:  # fmt: skip
        span = Span(since, until)
        is_given = folder is not None or live or span != EVERYTHING
        needs_none = name == "--trace" or parameters.get(unless) is not None
        inputs = None
        if is_given or not needs_none:
            inputs = _inputs(settings, folder, live, span, name)
        return function(settings=settings, inputs=inputs, **parameters)

    options = (
        folder_parameter,
        click.option(
            "--live", is_flag=True, help="Read springtide.windows in place of a folder."
        ),
        click.option(
            "--since", type=PastTime(), metavar="TIME",
            help="Of an archive or the live log, only windows that ended after this time, as 7d "
            "(ago) or 2023-11-14T22:00:00Z.",
        ),
        click.option(
            "--until", type=PastTime(), metavar="TIME",
            help="The same up to this time.",
        ),
    )  # fmt: skip
    decorated: Callable[..., Any] = run
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def _inputs(
    settings: Settings, folder: Path | None, live: bool, span: Span, name: str
) -> TraceInput:
    if span.since is not None and span.until is not None and span.until <= span.since:
        raise UsageError("--until is not after --since", hint="give a later --until")
    if live == (folder is not None):
        raise UsageError(
            f"give either {name} or --live",
            hint=f"{name} has traces or is an archive; --live reads springtide.windows",
        )
    keep_freed_memory()
    statistic, kafka = settings.model.training_statistic, settings.kafka
    if folder is not None:
        return folder_input(folder, statistic, span)

    def read_topic(name: str) -> list[Trace]:
        silence_logs(settings, "aiokafka")
        progress = progress_report("reading the live log")
        return [run_requests(kafka, topic_trace(kafka, name, statistic, span, progress))]

    return TraceInput("the live log", [LIVE], read_topic)


def folder_input(folder: Path, statistic: str = STATISTIC, span: Span = EVERYTHING) -> TraceInput:
    """The data sets of a folder with traces, or the one of an archive, called as its directory,
    with this statistic of usage.

    Raises `UsageError` for any other folder, or for both in one.
    """
    if not is_archive(folder):
        if span != EVERYTHING:
            raise UsageError(
                f"--since and --until do not apply to the traces in {folder}",
                hint="they select from an archive or from the live log",
            )
        return TraceInput(str(folder), datasets(folder), partial(read_dataset, folder), folder)
    if has_traces(folder):
        raise UsageError(
            f"{folder} has traces and an archive", hint="give each a folder of its own"
        )

    def read_archive(name: str) -> list[Trace]:
        return [archive_trace(folder, name, statistic, span, progress_report(f"reading {folder}"))]

    return TraceInput(str(folder), [folder.resolve().name], read_archive, folder)


def trace_progress(trace: Trace, what: str = "") -> Callable[[int], None]:
    """Report the steps of a trace that are done, every few seconds on a terminal; `what` of it, if
    that is not empty."""
    name = ", ".join(filter(None, (trace.dataset, trace.scenario, what)))
    report_share = progress_report(f"{name}, {trace.steps} steps")
    return lambda step: report_share(step / trace.steps)


def progress_report(title: str) -> Callable[[float], None]:
    """Report a share, 0 to 1, every few seconds on a terminal, once elsewhere."""
    last = time.monotonic()
    is_first = True

    def report_share(share: float) -> None:
        nonlocal last, is_first
        now = time.monotonic()
        if now - last >= _PROGRESS_SECONDS:
            print_progress(f"{title}: {share:.0%}", is_first=is_first)
            last, is_first = now, False

    return report_share
