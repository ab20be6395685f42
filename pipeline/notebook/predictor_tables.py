"""Predicted peaks of past usage, and scores of predictors on traces, as Arrow tables."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.agents.bank_settings import model_config
from pipeline.archive.archive_reader import read_windows
from pipeline.cli.backtest_files import check_variants, settings_variants
from pipeline.cli.trace_inputs import folder_input
from pipeline.errors import UsageError
from pipeline.notebook.notebook_settings import read_settings, with_predictors
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.processors.archive.archive_schema import ARCHIVE_SCHEMA
from pipeline.processors.archive.archived_windows import archived_windows
from pipeline.processors.backtest.judge import Judgement, judge
from pipeline.processors.backtest.peers import PEERS
from pipeline.processors.backtest.replay import calibrated
from pipeline.processors.backtest.report import machine_table
from pipeline.processors.backtest.suites import Selection, selected_suites
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.model.node_peaks import PeakBatch
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.settings import Settings

PEAK_SCHEMA: Final = pa.schema(
    [
        ("node", pa.string()),
        ("time", pa.timestamp("ms", "UTC")),
        ("predictor", pa.string()),
        ("resource", pa.string()),
        ("peak", pa.float64()),
        ("requests", pa.float64()),
    ]
)
"""The columns of `predict`. `time` is the end of the last window that the prediction knows.
`resource` is `cpu`, with amounts in millicores, or `memory`, in bytes."""

_BATCH_WINDOWS: Final = 500
"""Windows of distinct nodes that a bank learns in one call."""


def predict(
    windows: str | Path | pa.Table | Iterable[LoggedWindow],
    *,
    predictors: Sequence[str] | None = None,
    every_seconds: float = 3600.0,
    settings: Settings | None = None,
) -> pa.Table:
    """Predicted peaks of Prod, in the columns of `PEAK_SCHEMA`: those of a worker that reads these
    windows from the first one on.

    `windows` are the directory of an archive, which may be larger than memory, `read_windows(..)`
    of some of its days or nodes, or a table with all columns and all rows of each window in the
    order of the log, as `read_topic` returns it. `predictors` are by default `model.predictors`.
    Nodes have the policy that their windows state. Each predictor predicts after the first window
    of a node that ends in each interval of `every_seconds` since 1970.

    `peak` is what accuracy and backtests judge: `requests`, those of Prod, less what may be
    reclaimed of them.

    Raises `UsageError` or `InvalidRecordError` for invalid windows, `PredictorError` for an unknown
    predictor.
    """
    if not 0 < every_seconds < math.inf:
        raise UsageError(f"every_seconds is {every_seconds}", hint="give a positive number")
    config = model_config(with_predictors(settings or read_settings(), predictors))
    bank, intervals = Bank(config), dict[str, int]()
    batches: list[pa.RecordBatch] = []
    for run in _runs(_logged(windows)):
        ends = _learn(bank, run, config.training_statistic)
        now = {node: int(end_ms / 1000 // every_seconds) for node, end_ms in ends.items()}
        due = [node for node, interval in now.items() if intervals.get(node) != interval]
        intervals |= now
        if due:
            batches.append(_peak_rows(bank.peaks(due)))
    return pa.Table.from_batches(batches, PEAK_SCHEMA).combine_chunks()


def _logged(windows: str | Path | pa.Table | Iterable[LoggedWindow]) -> Iterable[LoggedWindow]:
    if isinstance(windows, str | Path):
        return read_windows(Path(windows))
    if not isinstance(windows, pa.Table):
        return windows
    if missing := [name for name in ARCHIVE_SCHEMA.names if name not in windows.column_names]:
        raise UsageError(f"the table has no column {missing[0]!r}",
                         hint="read windows with all columns")  # fmt: skip
    try:
        rows = windows.select(ARCHIVE_SCHEMA.names).cast(ARCHIVE_SCHEMA).combine_chunks()
    except (pa.ArrowException, ValueError) as error:
        raise UsageError(
            f"the table has not the types of an archive: {error!s:.200}",
            hint="give a table of read_archive or read_topic",
        ) from error
    return (record for batch in rows.to_batches() for record in archived_windows(batch))


def _runs(records: Iterable[LoggedWindow]) -> Iterator[list[LoggedWindow]]:
    """Split records into runs without a node twice: a prediction may follow each record."""
    run: dict[str, LoggedWindow] = {}
    for record in records:
        node = record.window.header.node
        if node in run or len(run) == _BATCH_WINDOWS:
            yield [*run.values()]
            run = {}
        run[node] = record
    if run:
        yield [*run.values()]


def _learn(bank: Bank, run: Sequence[LoggedWindow], statistic: str) -> dict[str, int]:
    """Apply records of distinct nodes as a worker does; return the end in milliseconds of each
    window that was applied, by node."""
    windows = []
    for _, _, window in run:
        node = window.header.node
        if window.type == "window":
            windows.append(window)
        elif window.type == "departure" and not bank.has_window_since(node, window.appended_ms):
            bank.forget(node)
    if not windows:
        return {}
    batch = WindowBatch(windows)
    training = batch.training(statistic)
    ends = {}
    for position, outcome in enumerate(bank.apply(training)):
        if outcome.status == "applied":
            ends[outcome.node] = outcome.end_ms
        else:
            bank.corroborate(training.heads[position], batch.average.node[position])
    return ends


def _peak_rows(peaks: PeakBatch) -> pa.RecordBatch:
    """Rows by node, predictor and resource."""
    prods = {name: columns.reclaimable for name, columns in peaks.by_predictor.items()}
    requests = np.stack([prod.requests for prod in prods.values()], axis=1)
    amounts = np.stack([prod.amount for prod in prods.values()], axis=1)
    nodes, each = len(peaks), len(prods) * len(RESOURCES)
    columns = [
        pa.array(np.repeat(peaks.names, each)),
        pa.array(np.repeat(peaks.view.end_ms, each)),
        pa.array(np.tile(np.repeat([*prods], len(RESOURCES)), nodes)),
        pa.array(np.tile(RESOURCES, nodes * len(prods))),
        pa.array((requests - amounts).ravel(), from_pandas=True),
        pa.array(requests.ravel(), from_pandas=True),
    ]
    return pa.record_batch(
        [column.cast(field.type) for column, field in zip(columns, PEAK_SCHEMA, strict=True)],
        schema=PEAK_SCHEMA,
    )


def backtest(
    folder: str | Path,
    *,
    predictors: Sequence[str] | None = None,
    peers: bool = False,
    risks: Sequence[float] = (),
    dataset: str | None = None,
    selection: Selection | None = None,
    settings: Settings | None = None,
) -> pa.Table:
    """Scores of predictors on the traces of a folder, or of one data set in it, or on an archive: a
    row for each suite, variant and node, with the columns of `springtide backtest --parquet`.

    Variants are `predictors`, by default `model.predictors`, with `peers` those of other systems,
    too, and the calibrated predictor at each of `risks` (0 to 1). `selection` chooses scenarios,
    resources and horizons. Scores are shares of 0 to 1, null is unknown:
    docs/reference/backtest.md describes traces, protocol and scores.

    Raises `UsageError` for a folder without traces or a selection without a suite,
    `InvalidRecordError` for a file that is no trace, `PredictorError` for an unknown predictor.
    """
    own = with_predictors(settings or read_settings(), predictors)
    inputs = folder_input(Path(folder), own.model.training_statistic)
    variants = settings_variants(own)
    variants += [*(PEERS if peers else ()), *map(calibrated, sorted(set(risks)))]
    check_variants(variants)
    judgements: list[Judgement] = []
    for name in inputs.chosen([] if dataset is None else [dataset]):
        for trace in inputs.read(name):
            if suites := selected_suites(trace, selection or Selection()):
                judgements += judge(trace, suites, variants)
    if not judgements:
        raise UsageError("no suite is left", hint="select another scenario or resource")
    return machine_table(judgements)
