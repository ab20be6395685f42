"""`springtide model fit`: models from a file of the past, without Kafka."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import click

from pipeline.agents.bank_settings import model_config
from pipeline.cli.model_export import require_new, write_whole
from pipeline.cli.options import settings_options
from pipeline.cli.safe_output import say
from pipeline.errors import InvalidRecordError, UsageError
from pipeline.processors.exchange.trace_windows import read_trace
from pipeline.processors.explain.model_state_text import brief, peaks_table
from pipeline.processors.join.window_batch import WindowBatch
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import NODE, ModelConfig
from pipeline.settings import Settings
from pipeline.sources.trace_files import read_table
from pipeline.topics.nodes import check_node_name
from pipeline.topics.windows import Window

_AT_ONCE = 500


@click.command(
    epilog="Exit codes: 0 learned, 1 the file is no trace, or nothing can be learned from it; 2 "
    "usage or settings.",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--node", required=True, help="The node that it is the past of.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the models to this file.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is there.")
@settings_options("model.*")
def fit(settings: Settings, file: Path, node: str, output: Path | None, overwrite: bool) -> None:
    """Learn the past of a node from FILE, and show what each predictor says at its end.

    FILE is CSV or Parquet: a row for the node, and one for each pod if there are any, of every
    window. Its columns are window_end and any of those of samples and windows
    (docs/explanation/models.md);
    window_end and cpu_cores_avg are enough. All goes the way that samples go in a worker.

    `springtide model import --from springtide` takes the models that it writes.

    \b
    Examples:
      springtide model fit node-1.csv --node node-1
      springtide model fit node-1.parquet --node node-1 --output node-1.springtide
    """
    try:
        check_node_name(node)
    except InvalidRecordError as error:
        raise UsageError(f"--node: {error.message}", hint="name it as Kubernetes does") from error
    if output is not None:
        require_new(output, overwrite=overwrite)
        if output.exists() and output.samefile(file):
            raise UsageError(f"{output} is the trace itself", hint="name another file")
    config = model_config(settings)
    bank = Bank(config)
    try:
        windows = read_trace(read_table(file), node, config.strategy)
        bad_values, trained = _learn(bank, windows, config)
    except InvalidRecordError as error:
        raise InvalidRecordError(f"{file}: {error.message}", hint=error.hint) from error
    if not trained or not bank.peaks([node])[0].samples[NODE].any():
        raise InvalidRecordError(
            f"{file}: nothing is learned from it",
            hint="its windows cover less than model.minimum_coverage"
            if not trained
            else "no window has a usage of the node that is believed: see cpu_cores_avg and "
            "memory_bytes_avg of its rows",
        )
    data = bank.state_of(node)
    state = state_codec.decode(data)
    if output is not None:
        write_whole(output, data)
    say([f"{node}: {brief(state)}, {state.gaps} missing, {trained} learned"])
    bad = [f"{name}: {count} bad values, taken as unknown" for name, count in bad_values.items()]
    say([*bad, "", *peaks_table(bank.peaks([node])[0])])
    if output is not None:
        say(["", f"written to {output}"])


def _learn(bank: Bank, windows: Iterable[Window], config: ModelConfig) -> tuple[Counter[str], int]:
    """How many values of each column were none, and how many windows were learned."""
    bad_values: Counter[str] = Counter()
    trained = 0
    for some in _batches(windows):
        for window in some:
            bad_values.update(window.bad_values)
        batch = WindowBatch(some, config.memory_collect_policy)
        outcomes = bank.apply(batch.training(config.training_statistic))
        trained += sum(outcome.trained for outcome in outcomes)
    return bad_values, trained


def _batches(windows: Iterable[Window]) -> Iterator[list[Window]]:
    left = iter(windows)
    while some := list(islice(left, _AT_ONCE)):
        yield some
