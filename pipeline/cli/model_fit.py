"""`springtide model fit`: fit models to a trace file, without Kafka."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import click

from pipeline.agents.bank_settings import model_config
from pipeline.cli.help_sections import Command
from pipeline.cli.model_export import require_new, write_atomically
from pipeline.cli.options import settings_options
from pipeline.cli.safe_output import print_lines
from pipeline.errors import InvalidRecordError, UsageError
from pipeline.processors.exchange.trace_windows import read_trace
from pipeline.processors.explain.model_state_text import brief, peaks_table
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import NODE, ModelConfig
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.settings import Settings
from pipeline.sources.trace_files import read_table
from pipeline.topics.nodes import check_node_name
from pipeline.topics.windows import Window

_BATCH_SIZE = 500


@click.command(
    cls=Command,
    exit_codes={
        0: "fitted",
        1: "failure: the file is not a trace, or contains nothing to learn from",
    },
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--node", required=True, help="Name of the node that the trace belongs to.")
@click.option(
    "--to", "output", type=click.Path(path_type=Path), help="Write the models to this file."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@settings_options("model.*", shown=("model.predictors",))
def fit(settings: Settings, file: Path, node: str, output: Path | None, overwrite: bool) -> None:
    """Fit the models of a node to the trace in FILE, and print each predictor's peaks at its end.

    FILE is CSV or Parquet: per window a row for the node, and optionally a row per pod. Its columns
    are window_end and any column of samples and windows; window_end and cpu_cores_avg suffice. The
    windows are processed as in a worker.

    `springtide model import --from springtide` imports the file that --to writes.

    \b
    Examples:
      springtide model fit node-1.csv --node node-1
      springtide model fit node-1.parquet --node node-1 --to node-1.springtide
    """
    try:
        check_node_name(node)
    except InvalidRecordError as error:
        raise UsageError(f"--node: {error.message}", hint="give the name of a Node") from error
    if output is not None:
        require_new(output, overwrite=overwrite)
        if output.exists() and output.samefile(file):
            raise UsageError(f"--to {output} is the trace itself", hint="give another file")
    config = model_config(settings)
    bank = Bank(config)
    try:
        windows = read_trace(read_table(file), node, config.strategy)
        bad_values, trained = _learn(bank, windows, config)
    except InvalidRecordError as error:
        raise InvalidRecordError(f"{file}: {error.message}", hint=error.hint) from error
    if not trained or not bank.peaks([node])[0].samples[NODE].any():
        raise InvalidRecordError(
            f"{file}: contains nothing to learn from",
            hint="the coverage of its windows is below model.minimum_coverage"
            if not trained
            else "no window has valid usage of the node: check cpu_cores_avg and "
            "memory_bytes_avg of its rows",
        )
    data = bank.encode_state(node)
    state = state_codec.decode(data)
    if output is not None:
        write_atomically(output, data)
    print_lines([f"{node}: {brief(state)}, {state.gaps} missing, {trained} learned"])
    bad = [
        f"{name}: {count} invalid value{'s' if count > 1 else ''}, read as unknown"
        for name, count in bad_values.items()
    ]
    print_lines([*bad, "", *peaks_table(bank.peaks([node])[0])])
    if output is not None:
        print_lines(["", f"written to {output}"])


def _learn(bank: Bank, windows: Iterable[Window], config: ModelConfig) -> tuple[Counter[str], int]:
    """Apply the windows; count invalid values by column, and trained windows."""
    bad_values: Counter[str] = Counter()
    trained = 0
    remaining = iter(windows)
    while batch := list(islice(remaining, _BATCH_SIZE)):
        for window in batch:
            bad_values.update(window.bad_values)
        window_batch = WindowBatch(batch)
        outcomes = bank.apply(window_batch.training(config.training_statistic))
        trained += sum(outcome.trained for outcome in outcomes)
    return bad_values, trained
