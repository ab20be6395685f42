"""`springtide qos-bench`: what co-location costs a service, with and without protection."""

import asyncio
import os
from pathlib import Path
from typing import Final

import click

from pipeline.cli.duration_option import Duration
from pipeline.cli.finite_range import FiniteRange
from pipeline.cli.help_sections import Command
from pipeline.errors import UsageError

_SHORTEST_SECONDS: Final = 5
_LONGEST_SECONDS: Final = 3600


@click.command(
    cls=Command,
    exit_codes={0: "measured", 1: "failure: no root, no writable cgroups, or a process ended"},
)
@click.option(
    "--for", "seconds", type=Duration(), metavar="DURATION", default="30s", show_default=True,
    help="Measured time of each of the five phases, 5s to 1h; each takes about ten seconds more.",
)  # fmt: skip
@click.option(
    "--rate", type=FiniteRange(1, 10_000), default=None,
    help="Requests a second; each takes 5 ms of CPU. By default they use a quarter of all CPUs, "
    "and are at most 2000.",
)  # fmt: skip
@click.option(
    "--offline", "offline_processes", type=click.IntRange(1, 4096), default=None,
    help="Processes of offline work; by default two for each CPU.",
)  # fmt: skip
@click.option(
    "--svg", type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a picture to this file.",
)  # fmt: skip
def command(
    seconds: float, rate: float | None, offline_processes: int | None, svg: Path | None
) -> None:
    """Measure the latency of an HTTP server beside offline work, and print a table.

    Runs five phases on this machine: the server alone; beside an offline pod of the same class that
    requests the rest of the node; beside best-effort work under Koordinator's CPU suppress, with
    its default threshold and a higher one; and under that of the node actuator, which reacts to
    pressure and prediction, with a still higher threshold and the work in the idle class. Server
    and offline work are real processes in real cgroups, and exporter and node actuator are the real
    ones. Needs root and writable cgroups, but no Kafka and no Kubernetes.

    Latencies count from the time at which a request was due. Let nothing else run on the machine.

    \b
    Examples:
      springtide qos-bench
      springtide qos-bench --for 2m --svg qos.svg
    """
    from pipeline.local.demo_settings import demo_home
    from pipeline.local.demo_signals import interruptible
    from pipeline.local.demo_workload import remove_leftovers
    from pipeline.local.qos_bench import PHASES, WORK_US, BenchOptions, run_bench
    from pipeline.local.qos_report import picture, table

    if not _SHORTEST_SECONDS <= seconds <= _LONGEST_SECONDS:
        raise UsageError("--for is less than 5s or more than 1h", hint="give a time such as 30s")
    if svg is not None and not svg.absolute().parent.is_dir():
        raise UsageError(
            f"--svg {svg}: its directory does not exist", hint="create it, or give another file"
        )
    cpus = os.cpu_count() or 1
    options = BenchOptions(
        seconds, rate or min(2000.0, cpus * 1e6 / WORK_US / 4), offline_processes or 2 * cpus
    )
    remove_leftovers()
    with interruptible(), demo_home(None) as home:
        results = asyncio.run(
            run_bench(PHASES, options, home, lambda text: click.echo(text, err=True))
        )
    click.echo(table(results, cpus))
    if svg is not None:
        svg.write_text(picture(results))
        click.echo(f"picture: {svg}", err=True)
