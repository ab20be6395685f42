"""`springtide what-if`: replay history under a policy, beside another one."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from pipeline.cli.duration_option import Duration
from pipeline.cli.file_arguments import argument_name, read_argument
from pipeline.cli.help_sections import Command, SecondaryOption
from pipeline.cli.options import KAFKA_CLIENT, output_option, settings_options, silence_logs
from pipeline.cli.published_results import check_name, check_topic, difference, publish
from pipeline.cli.published_results import withdraw as withdraw_result
from pipeline.cli.replayed_policies import NodeAmounts, PolicyFile, read_policy, replayed_policy
from pipeline.cli.safe_output import print_lines, printable
from pipeline.cli.trace_inputs import (
    TraceInput,
    dataset_option,
    scenario_option,
    trace_input_unless,
    trace_progress,
)
from pipeline.cli.what_if_text import document, published, text_lines
from pipeline.errors import UsageError
from pipeline.processors.backtest.suites import Selection, selected_suites
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_samples import with_record_names
from pipeline.processors.backtest.what_if import PolicyOutcome, replay_outcome
from pipeline.processors.descheduling.replayed_relief import ReplayedRelief
from pipeline.settings import Settings

_HOUR: Final = 3600


@click.command(
    cls=Command,
    exit_codes={
        0: "compared",
        1: "failure: a policy is invalid, an input is damaged or too large, or Kafka is "
        "unavailable",
        3: "with --live, --publish or --withdraw: the topic is missing",
    },
)
@click.option(
    "--policy", "new_file", type=click.Path(path_type=Path),
    help="The policy to try, YAML or JSON, - for standard input.",
)  # fmt: skip
@click.option(
    "--against", "old_file", type=click.Path(path_type=Path),
    help="The policy to compare with; by default that of no file: the settings of the command, "
    "without Mid, Batch and thresholds.",
)  # fmt: skip
@click.option(
    "--capacity", cls=SecondaryOption, type=click.Choice(["limits", "requests"]),
    default="limits", show_default=True,
    help="What stands for the capacity of a node where the trace has none: the highest sum of "
    "these of its pods.",
)  # fmt: skip
@dataset_option
@scenario_option
@click.option("--by-node", is_flag=True, help="Show the nodes that differ, too.")
@click.option(
    "--burn-in", cls=SecondaryOption, type=Duration(), help="Time before anything counts."
)
@click.option(
    "--publish",
    "name",
    metavar="NAME",
    help="Show the result in the console, too, with the lines in which the policy files differ.",
)
@click.option("--withdraw", metavar="NAME", help="Take a published result out of the console.")
@output_option
@settings_options(*KAFKA_CLIENT, "kafka.partitions", "model.*")
@trace_input_unless("withdraw")
def command(
    settings: Settings,
    inputs: TraceInput | None,
    new_file: Path | None,
    old_file: Path | None,
    capacity: str,
    names: Sequence[str],
    scenarios: Sequence[str],
    by_node: bool,
    burn_in: float | None,
    name: str | None,
    withdraw: str | None,
    as_json: bool,
) -> None:
    """Replay past usage under two policies, and show what would have been: Mid and Batch,
    violations, savings, alerts of hot nodes, and evictions.

    FOLDER has traces or is an archive, as for `springtide backtest`; --live reads the log of a
    running cluster.
    A policy file has any of the ConfigMap slo-controller-config, a DeschedulerConfiguration, and a
    section `model` of settings, as documents of one file. Windows go through the processors of a
    worker, in event time; pods that the planner would evict move. Nothing reacts to what is
    offered. docs/how-to/try-a-policy.md describes the result.

    \b
    Examples:
      springtide what-if traces --policy new.yaml --against old.yaml
      springtide what-if traces --policy new.yaml -o json > result.json
      springtide what-if /var/lib/springtide/archive --policy new.yaml --since 7d
      springtide what-if --live --policy new.yaml --against old.yaml --publish target-70
      springtide what-if --withdraw target-70
    """  # fmt: skip
    if withdraw is not None:
        _withdraw(settings, withdraw, inputs, new_file or old_file or name)
        return
    if new_file is None or inputs is None:
        raise UsageError("give --policy", hint="docs/how-to/try-a-policy.md has an example")
    if name is not None:
        check_name(name, "--publish")
        silence_logs(settings, "aiokafka")
        check_topic(settings.kafka)
    old, new = (b"" if file is None else read_argument(file) for file in (old_file, new_file))
    files = {
        "old": PolicyFile(settings) if old_file is None else _read(old, old_file, settings),
        "new": _read(new, new_file, settings),
    }
    results = [
        (trace, *_compared(trace, files, capacity, burn_in))
        for trace in _chosen(inputs, names, scenarios)
    ]
    try:
        # Before anything is printed: a reader such as `head` may close standard output.
        if name is not None:
            against, policy = "" if old_file is None else _file_name(old_file), _file_name(new_file)
            lines = difference(old, new, against or "no file", policy)
            publish(settings.kafka, name, policy, against, lines, published(results))
            click.echo(f"published as {name}: see the page What-if of the console", err=True)
    finally:
        if as_json:
            click.echo(json.dumps(document(results), indent=1))
        else:
            print_lines(text_lines(results, by_node=by_node))


def _chosen(inputs: TraceInput, names: Sequence[str], scenarios: Sequence[str]) -> Iterator[Trace]:
    """The traces that are asked for, one after the other. Raises `UsageError` if there is none."""
    has_any = False
    for dataset in inputs.chosen(names):
        for trace in inputs.read(dataset):
            if trace.resources and (not scenarios or trace.scenario in scenarios):
                has_any = True
                yield trace
    if not has_any:
        raise UsageError(
            "no trace is left",
            hint="drop one of --dataset, --scenario, or give traces with limits, without which "
            "usage is unknown",
        )


def _file_name(file: Path) -> str:
    """A name of a file without its folder, which is nobody else's concern."""
    return Path(argument_name(file)).name


def _withdraw(settings: Settings, name: str, inputs: object, other: object) -> None:
    """Take a published result out of the console. Raises `UsageError` if more is asked for."""
    if inputs is not None or other is not None:
        raise UsageError(
            "--withdraw takes a published result away, and replays nothing",
            hint="give FOLDER, --live, --policy, --against and --publish in another command",
        )
    check_name(name, "--withdraw")
    silence_logs(settings, "aiokafka")
    check_topic(settings.kafka)
    withdraw_result(settings.kafka, name)
    click.echo(f"withdrawn: {name}", err=True)


def _read(text: bytes, file: Path, settings: Settings) -> PolicyFile:
    policy = read_policy(text, argument_name(file), settings)
    for warning in policy.warnings:
        click.echo(f"warning: {printable(warning)}", err=True)
    return policy


def _compared(
    trace: Trace, files: Mapping[str, PolicyFile], capacity: str, burn_in: float | None
) -> tuple[dict[str, PolicyOutcome], list[str]]:
    """What each policy would have done in a trace, and what of it was assumed."""
    trace = with_record_names(trace)
    amounts = NodeAmounts.of(trace, capacity)
    outcomes = {}
    for name, file in files.items():
        policy = replayed_policy(trace, file, amounts)
        suites = selected_suites(
            trace,
            Selection(
                horizon_hours=[policy.config.horizon_seconds / _HOUR],
                burn_in_hours=None if burn_in is None else burn_in / _HOUR,
            ),
        )
        steps = round(suites[0].burn_in_hours * _HOUR / trace.step_seconds)
        relief = None
        if file.descheduling is not None:
            relief = ReplayedRelief(trace.nodes, amounts.amounts, file.descheduling).moves
        outcomes[name] = replay_outcome(
            trace, policy, steps, suites[0].stride_steps, relief, trace_progress(trace, name)
        )
    return outcomes, amounts.notes
