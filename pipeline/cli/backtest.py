"""`springtide backtest`: judge predictors on past usage of traces, archives or the live log."""

import json
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Final

import click
import pyarrow as pa
import pyarrow.parquet

from pipeline.cli.backtest_files import (
    check_variants,
    read_suites,
    read_variants,
    settings_variants,
)
from pipeline.cli.duration_option import Duration
from pipeline.cli.finite_range import FiniteRange
from pipeline.cli.help_sections import Command, SecondaryOption
from pipeline.cli.model_export import write_atomically
from pipeline.cli.options import KAFKA_CLIENT, output_option, settings_options
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
from pipeline.processors.backtest import report
from pipeline.processors.backtest.html_report import detailed_variants, html_report
from pipeline.processors.backtest.judge import Judgement, judge
from pipeline.processors.backtest.origin_priors import (
    OriginPriors,
    check_origins,
    margins_of,
    priors_of_others,
)
from pipeline.processors.backtest.peers import PEERS
from pipeline.processors.backtest.replay import Variant, calibrated
from pipeline.processors.backtest.suites import (
    Selection,
    Suite,
    check_suites,
    origin_of,
    selected_suites,
)
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.calibrated.limits import HIGHEST_RISK, LOWEST_RISK
from pipeline.settings import Settings

_HOUR: Final = 3600


@click.command(
    cls=Command,
    exit_codes={
        0: "judged",
        1: "failure: an input is damaged or too large, Kafka is unavailable, or a predictor failed",
        3: "with --live: the topic is missing",
    },
)
@click.option(
    "--variants",
    "variants_file",
    type=click.Path(path_type=Path),
    help="Judge these variants (YAML, - for standard input) in place of model.predictors.",
)
@click.option("--peers", is_flag=True, help="Judge predictors of other systems, too.")
@click.option(
    "--risk",
    "risks",
    type=FiniteRange(LOWEST_RISK, HIGHEST_RISK),
    multiple=True,
    help="Judge the calibrated predictor with this declared risk, too; may be repeated.",
)
@click.option(
    "--prior",
    "priors",
    cls=SecondaryOption,
    type=click.Choice(["package", "others"]),
    multiple=True,
    default=["package"],
    show_default=True,
    help="With --risk: start from the prior of the package, or from one that is learned on the "
    "data sets of the input that have another origin than the suite; may be repeated.",
)
@click.option(
    "--moved-pods-known",
    cls=SecondaryOption,
    is_flag=True,
    help="With --risk: judge a variant in which a moved pod keeps its history, too.",
)
@click.option(
    "--suites",
    "suites_file",
    cls=SecondaryOption,
    type=click.Path(path_type=Path),
    help="Judge on the suites in this file (YAML); by default what the traces have.",
)
@dataset_option
@scenario_option
@resource_option
@click.option(
    "--horizon",
    "horizons",
    type=Duration(),
    multiple=True,
    help="How long a prediction has to hold, such as 24h; may be repeated.",
)
@burn_in_option
@stride_option
@output_option
@click.option(
    "--parquet",
    "parquet_file",
    cls=SecondaryOption,
    type=click.Path(path_type=Path),
    help="Write the results of every node here.",
)
@click.option(
    "--html",
    "html_file",
    type=click.Path(path_type=Path),
    help="Write a report with figures here: one file.",
)
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@settings_options(*KAFKA_CLIENT, "kafka.partitions", "model.*")
@trace_input_options
def command(
    settings: Settings,
    inputs: TraceInput,
    variants_file: Path | None,
    peers: bool,
    risks: Sequence[float],
    priors: Sequence[str],
    moved_pods_known: bool,
    suites_file: Path | None,
    names: Sequence[str],
    scenarios: Sequence[str],
    resources: Sequence[str],
    horizons: Sequence[float],
    burn_in: float | None,
    stride: float | None,
    as_json: bool,
    parquet_file: Path | None,
    html_file: Path | None,
    overwrite: bool,
) -> None:
    """Judge predictors on past usage: how often they predicted too little, and how much of the
    requests they would have given away.

    The predictors run as in a worker, in event time. FOLDER is an archive (of `springtide
    archive`), or has traces: pairs of files NAME.series.parquet and NAME.placement.parquet, or the
    same as .csv or .csv.gz, or folders NAME.prometheus with range exports of Prometheus. --live
    reads the log of a running cluster. docs/reference/backtest.md describes inputs, protocol and
    results.

    \b
    Examples:
      springtide backtest traces --peers --html report.html
      springtide backtest traces --predictors '[percentile, nsigma-v2]' --horizon 24h
      springtide backtest traces --risk 0.01 --risk 0.05 --dataset april
      springtide backtest /var/lib/springtide/archive --since 30d
      springtide backtest --live --horizon 1h --burn-in 6h
    """  # fmt: skip
    results = [path for path in (parquet_file, html_file) if path is not None]
    inputs.require_new(results, (variants_file, suites_file), overwrite=overwrite)
    if len({path.resolve() for path in results}) < len(results):
        raise UsageError("two results name one file", hint="give each its own")
    if moved_pods_known and not risks:
        raise UsageError("--moved-pods-known is without --risk", hint="add --risk 0.02")
    if "others" in priors and not risks:
        raise UsageError("--prior others is without --risk", hint="add --risk 0.02")
    variants = settings_variants(settings)
    if variants_file is not None:
        variants = read_variants(variants_file, settings)
    variants += PEERS if peers else ()
    given = None if suites_file is None else read_suites(suites_file)
    selection = Selection(
        scenarios=scenarios,
        resources=resources,
        horizon_hours=[seconds / _HOUR for seconds in horizons],
        burn_in_hours=None if burn_in is None else burn_in / _HOUR,
        stride_seconds=stride,
    )
    chosen = inputs.chosen(names or [suite.dataset for suite in given or ()])
    if risks:
        learned = [
            _priors_of_others(inputs, given or ()) if prior == "others" else None
            for prior in dict.fromkeys(priors)
        ]
        variants += _calibrated_variants(risks, learned, moved_pods_known=moved_pods_known)
    check_variants(variants)
    detailed = detailed_variants(variants) if html_file is not None else []
    judgements: list[Judgement] = []
    seen: list[Suite] = []
    for name in chosen:
        for trace in inputs.read(name):
            suites = _suites(trace, given, selection)
            seen += suites
            check_suites(seen)
            if suites:
                judgements += judge(trace, suites, variants, trace_progress(trace), detailed)
    if not judgements:
        raise UsageError("no suite is left", hint="drop one of --dataset, --scenario, --resource")
    if as_json:
        click.echo(json.dumps(report.document(judgements), indent=1))
    else:
        print_lines(report.text(judgements))
    if parquet_file is not None:
        write_atomically(parquet_file, _parquet(report.machine_table(judgements)))
    if html_file is not None:
        write_atomically(html_file, html_report(judgements).encode())


def _calibrated_variants(
    risks: Sequence[float], priors: Iterable[OriginPriors | None], *, moved_pods_known: bool
) -> list[Variant]:
    """The calibrated predictor with each prior and declared risk; None is the package's prior."""
    return [
        calibrated(risk, moved_pods_known=known, others=prior)
        for known, prior, risk in product(
            [False, True] if moved_pods_known else [False], priors, sorted(set(risks))
        )
    ]


def _priors_of_others(inputs: TraceInput, given: Sequence[Suite]) -> OriginPriors:
    """Learn on all data sets of the input, whichever are judged."""
    origins = {name: origin_of(name) for name in inputs.names}
    origins |= {suite.dataset: suite.source for suite in given if suite.dataset in origins}
    check_origins(origins.values())
    margins = {
        name: [margins_of(trace, trace_progress(trace, "prior")) for trace in inputs.read(name)]
        for name in inputs.names
    }
    return priors_of_others(margins, origins)


def _suites(trace: Trace, given: Sequence[Suite] | None, selection: Selection) -> list[Suite]:
    if given is None:
        return selected_suites(trace, selection)
    place = (trace.dataset, trace.scenario)
    return [suite for suite in given if (suite.dataset, suite.scenario) == place]


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content
