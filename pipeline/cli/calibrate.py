"""`springtide calibrate`: find the setting that saves most at a declared rate of violations."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from pipeline.agents.bank_settings import model_config
from pipeline.cli.backtest_files import variant_of
from pipeline.cli.calibration_text import document, text_lines, yaml_lines
from pipeline.cli.finite_range import FiniteRange
from pipeline.cli.help_sections import Command
from pipeline.cli.options import KAFKA_CLIENT, output_formats, settings_options
from pipeline.cli.safe_output import print_lines
from pipeline.cli.trace_inputs import (
    TraceInput,
    burn_in_option,
    dataset_option,
    resource_option,
    scenario_option,
    stride_option,
    trace_input_options,
    trace_progress,
)
from pipeline.errors import UsageError
from pipeline.processors.backtest.calibration import (
    Calibration,
    calibrate,
    is_scorable,
    too_short,
)
from pipeline.processors.backtest.judge import predict_suites
from pipeline.processors.backtest.replay import Variant
from pipeline.processors.backtest.setting_grid import Setting, grid, present_setting
from pipeline.processors.backtest.suites import Selection, selected_suites
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.model.predictor import may_decide
from pipeline.processors.predictors.registry import build
from pipeline.settings import Settings

_HOUR: Final = 3600
_NOT_REACHED: Final = 3
_TOO_SHORT: Final = 4
_COLUMN_HELP: Final = {
    "Columns": [
        ("CHOSEN", "Rate of violations in the earlier half of the history, which chose."),
        ("JUDGED", "Rate in the later half, which did not choose."),
        ("INTERVAL", "Interval of the latter rate, of 90% of the resamples."),
        ("SURE", "Share of resamples whose rate is at most the declared one."),
        ("SAVES", "Share of the requests that would have been given away, in the later half."),
        ("NOW, SAVES", "Rate and savings of the present settings, in the later half."),
    ]
}


@click.command(
    cls=Command,
    exit_codes={
        0: "a setting was found, and its rate held in the later half",
        1: "failure: an input is damaged or too large, Kafka is unavailable, or a predictor failed",
        3: "no setting reaches the rate, or it did not hold; the closest is printed; with --live "
        "also: the topic is missing",
        4: "the history is too short to be sure",
    },
    tables=_COLUMN_HELP,
)
@click.option(
    "--violation", "target", type=FiniteRange(0.0001, 0.5), required=True,
    help="Highest rate of violations, a share such as 0.02.",
)  # fmt: skip
@dataset_option
@scenario_option
@resource_option
@burn_in_option
@stride_option
@output_formats("yaml", help=", yaml are settings to paste")
@settings_options(*KAFKA_CLIENT, "kafka.partitions", "model.*")
@trace_input_options
def command(
    settings: Settings,
    inputs: TraceInput,
    target: float,
    names: Sequence[str],
    scenarios: Sequence[str],
    resources: Sequence[str],
    burn_in: float | None,
    stride: float | None,
    output: str,
) -> None:
    """Find the setting that saves most on past usage, while its rate of violations is at most
    --violation.

    FOLDER has traces or is an archive, as for `springtide backtest`; --live reads the log of a
    running cluster.
    The command tries margins, quantiles, deviations, half-lives and declared risks of the
    predictors of model.predictors, by the protocol of `springtide backtest`, with the horizon of
    the settings. The earlier half of the history chooses, the later half judges.
    docs/how-to/choose-settings.md describes the result.

    \b
    Examples:
      springtide calibrate traces --violation 0.02
      springtide calibrate traces --violation 0.05 --predictors '[percentile, nsigma-v2]'
      springtide calibrate traces --violation 0.02 --predictors '[percentile, calibrated]'
      springtide calibrate traces --violation 0.02 -o yaml
      springtide calibrate /var/lib/springtide/archive --violation 0.02 --since 60d
    """  # fmt: skip
    tried = tried_settings(settings, target)
    variants = setting_variants(tried, settings)
    selection = Selection(
        scenarios=scenarios,
        resources=resources,
        horizon_hours=[settings.model.horizon_seconds / _HOUR],
        burn_in_hours=None if burn_in is None else burn_in / _HOUR,
        stride_seconds=stride,
    )
    results = [
        result
        for name in inputs.chosen(names)
        for trace in inputs.read(name)
        if (result := _calibrated(trace, selection, tried, variants, target))
    ]
    if not results:
        raise UsageError("no trace is left", hint="drop one of --dataset, --scenario, --resource")
    if output == "json":
        click.echo(json.dumps(document(results, target, settings), indent=1))
    elif output == "yaml":
        print_lines(yaml_lines(results, settings))
    else:
        print_lines(text_lines(results, target, settings))
    outcomes = {result.outcome for result in results}
    if outcomes & {"missed", "unreached"}:
        raise click.exceptions.Exit(_NOT_REACHED)
    if "too short" in outcomes:
        raise click.exceptions.Exit(_TOO_SHORT)


def tried_settings(settings: Settings, target: float) -> list[Setting]:
    """The settings to try for a rate of violations, the present one first: of each predictor that
    runs and may decide."""
    config = model_config(settings)
    predictors = build(settings.model.predictors, config.options)
    present = settings.model.predictor
    names = [present, *(name for name in predictors if name != present)]
    return [
        setting
        for name in names
        if may_decide(predictors[name])
        for setting in grid(present_setting(config, name), target)
    ]


def setting_variants(tried: Sequence[Setting], settings: Settings) -> list[Variant]:
    """A variant of each setting, on top of the others of `settings`."""
    options: Mapping[str, Mapping[str, Any]] = settings.model.predictor_options
    return [
        variant_of(
            f"{setting.predictor} {number}",
            setting.predictor,
            {**options.get(setting.predictor, {}), **setting.options},
            None,
            setting.model,
            settings,
        )
        for number, setting in enumerate(tried)
    ]


def _calibrated(
    trace: Trace,
    selection: Selection,
    tried: Sequence[Setting],
    variants: Sequence[Variant],
    target: float,
) -> Calibration | None:
    """The result of one trace; None if the options leave nothing of it."""
    suites = selected_suites(trace, selection)
    if not suites:
        return None
    if not all(is_scorable(trace, suite) for suite in suites):
        return too_short(trace, suites, target)
    predicted = predict_suites(trace, suites, variants, trace_progress(trace))
    return calibrate(trace, predicted, tried, target)
