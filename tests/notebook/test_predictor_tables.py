"""Tables of predicted peaks are those of the models, tables of scores those of the command."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pipeline import notebook
from pipeline.agents.bank_settings import model_config
from pipeline.archive.archive_reader import read_windows
from pipeline.cli.main import cli
from pipeline.errors import InvalidRecordError, PredictorError, SpringtideError, UsageError
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.settings import Settings
from pipeline.topics.windows import decode_window, departure
from tests.agents.test_results_fingerprint import recorded_windows
from tests.notebook.simulated_log import disturbed, logged, simulated_windows, write_archive

TRACES = Path(__file__).parents[1] / "data" / "traces"
CPU = notebook.Selection(resources=["cpu"])
PREDICTORS = ("percentile", "nsigma-v1", "max", "borg-default")
EACH_WINDOW = 1e-3


def settings_of(predictors: Sequence[str] = PREDICTORS) -> Settings:
    return notebook.read_settings({"model": {"predictors": [*predictors]}})


def peaks_window_by_window(records: Iterable[LoggedWindow]) -> list[dict[str, Any]]:
    """The rows after each window, by a bank that gets one window at a time."""
    config = model_config(settings_of())
    bank = Bank(config)
    rows = []
    for _, _, window in records:
        node = window.header.node
        if window.type != "window":
            if window.type == "departure" and not bank.has_window_since(node, window.appended_ms):
                bank.forget(node)
            continue
        batch = WindowBatch([window])
        training = batch.training(config.training_statistic)
        (outcome,) = bank.apply(training)
        if outcome.status != "applied":
            bank.corroborate(training.heads[0], batch.average.node[0])
            continue
        (peaks,) = bank.peaks([node])
        for name in PREDICTORS:
            prod = peaks.predictors[name].reclaimable
            for r, resource in enumerate(("cpu", "memory")):
                peak, requests = prod.requests[r] - prod.amount[r], prod.requests[r]
                rows.append(
                    {"node": node, "time": datetime.fromtimestamp(peaks.end_ms / 1000, UTC),
                     "predictor": name, "resource": resource, "peak": known(peak),
                     "requests": known(requests)}
                )  # fmt: skip
    return rows


def known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def by_key(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows in an order that does not depend on how nodes alternate."""
    order = ("node", "time", "predictor", "resource")
    return sorted((tuple(row.values()) for row in rows), key=lambda row: row[: len(order)])


@pytest.fixture(scope="module")
def records() -> list[LoggedWindow]:
    return logged(simulated_windows(days=1.2))


@pytest.fixture(scope="module")
def archive(records: list[LoggedWindow], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_archive(tmp_path_factory.mktemp("notebook") / "windows", records)


def test_predictions_of_an_archive_are_those_of_a_bank_window_by_window(
    archive: Path, records: list[LoggedWindow]
) -> None:
    table = notebook.predict(archive, predictors=PREDICTORS, every_seconds=EACH_WINDOW)
    assert table.schema == notebook.PEAK_SCHEMA
    expected = peaks_window_by_window(read_windows(archive))
    assert len(expected) == len(records) * len(PREDICTORS) * 2
    assert by_key(table.to_pylist()) == by_key(expected)
    peaks = [row["peak"] for row in expected if row["peak"] is not None]
    assert len({*peaks}) > len(records)


@pytest.mark.parametrize("seed", range(4))
def test_predictions_of_a_disturbed_log_are_those_of_a_bank(
    records: list[LoggedWindow], seed: int
) -> None:
    log = disturbed(records, seed)
    table = notebook.predict(log, settings=settings_of(), every_seconds=EACH_WINDOW)
    expected = peaks_window_by_window(log)
    assert by_key(table.to_pylist()) == by_key(expected)
    # Some windows were late or repeated.
    windows = sum(record.window.type == "window" for record in log)
    assert 0 < len(expected) < windows * len(PREDICTORS) * 2


@pytest.mark.slow
def test_predictions_of_the_recorded_log_are_those_of_a_bank() -> None:
    log = [
        LoggedWindow(record.partition, record.offset, decode_window(record.value or b""))
        for record in recorded_windows("usual")
    ]
    table = notebook.predict(log, settings=settings_of(), every_seconds=EACH_WINDOW)
    assert by_key(table.to_pylist()) == by_key(peaks_window_by_window(log))


def test_a_table_a_directory_and_windows_have_the_same_predictions(archive: Path) -> None:
    expected = notebook.predict(archive)
    assert notebook.predict(notebook.read_windows(archive)).equals(expected)
    table = notebook.read_archive(archive)
    assert by_key(notebook.predict(table).to_pylist()) == by_key(expected.to_pylist())
    # Frames of pandas or polars lose the exact types.
    types = [pa.large_string() if f.type == pa.string() else f.type for f in table.schema]
    other = table.cast(pa.schema([*zip(table.schema.names, types, strict=True)]))
    assert notebook.predict(other).equals(notebook.predict(table))


def test_a_prediction_follows_the_first_window_of_each_interval(archive: Path) -> None:
    every = notebook.predict(archive, predictors=["max"], every_seconds=EACH_WINDOW).to_pylist()
    hourly = notebook.predict(archive, predictors=["max"], every_seconds=3600).to_pylist()
    first: dict[Any, dict[str, Any]] = {}
    for row in every:
        hour = row["time"].replace(minute=0)
        first.setdefault((row["node"], hour, row["resource"]), row)
    assert hourly == [*first.values()]
    # The first window of the archive ends at 00:10, later ones at full hours.
    assert {row["time"].minute for row in hourly} == {0, 10}


def test_a_departed_node_starts_again(records: list[LoggedWindow]) -> None:
    own = [record for record in records if record.window.header.node == "sim-00000"]
    end = departure("sim-00000", own[99].window.appended_ms + 1)
    left = [*own[:100], LoggedWindow(own[99].partition, 10_000, end), *own[100:]]
    rest = notebook.predict(own[100:], every_seconds=EACH_WINDOW)
    assert notebook.predict(left, every_seconds=EACH_WINDOW).slice(400).equals(rest)
    assert not notebook.predict(own, every_seconds=EACH_WINDOW).slice(400).equals(rest)


def test_options_of_predictors_count(archive: Path) -> None:
    values = {"model": {"predictor_options": {"percentile": {"cpu": 0.5}}}}
    lower = notebook.predict(archive, settings=notebook.read_settings(values))
    usual = notebook.predict(archive)
    assert lower.schema == usual.schema
    cpu = [
        [row["peak"] for row in table.to_pylist() if row["predictor"] == "percentile"]
        for table in (lower, usual)
    ]
    assert cpu[0] != cpu[1]
    # Options of a predictor that does not run are left out.
    only_max = notebook.predict(
        archive, settings=notebook.read_settings(values), predictors=["max"]
    )
    assert only_max.equals(notebook.predict(archive, predictors=["max"]))


def test_no_windows_have_no_predictions() -> None:
    assert notebook.predict([]).equals(notebook.PEAK_SCHEMA.empty_table())


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"predictors": ["persentile"]}, PredictorError, "persentile"),
        ({"predictors": []}, SpringtideError, "model.predictors"),
        ({"every_seconds": 0}, UsageError, "every_seconds is 0"),
        ({"every_seconds": float("nan")}, UsageError, "every_seconds is nan"),
    ],
)
def test_bad_arguments_are_refused(
    archive: Path, arguments: dict[str, Any], kind: type[SpringtideError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        notebook.predict(archive, **arguments)


def test_tables_that_hold_no_windows_are_refused(archive: Path, tmp_path: Path) -> None:
    table = notebook.read_archive(archive)
    with pytest.raises(UsageError, match="no column 'epoch'"):
        notebook.predict(table.drop_columns("epoch"))
    with pytest.raises(UsageError, match="not the types"):
        notebook.predict(table.set_column(1, "log_partition", pa.array(["x"] * len(table))))
    pods = table.filter(pa.compute.equal(table["kind"], "pod"))
    with pytest.raises(InvalidRecordError, match="rows of nodes"):
        notebook.predict(pods)
    with pytest.raises(UsageError, match="no file of an archive"):
        notebook.predict(tmp_path)


@pytest.mark.slow
def test_scores_are_those_of_the_command(tmp_path: Path) -> None:
    file = tmp_path / "nodes.parquet"
    flags = ["--resource", "cpu", "--predictors", "[percentile, nsigma-v1]", "--parquet", str(file)]
    done = CliRunner().invoke(cli, ["backtest", str(TRACES), *flags])
    assert done.exit_code == 0, done.output
    table = notebook.backtest(TRACES, predictors=["percentile", "nsigma-v1"], selection=CPU)
    assert table.equals(pq.read_table(file).cast(table.schema))
    assert len(table) == 2 * 18


def test_scores_of_a_data_set_that_is_not_there_are_refused() -> None:
    with pytest.raises(UsageError, match="april"):
        notebook.backtest(TRACES, dataset="april")
    none = notebook.Selection(scenarios=["dense"])
    with pytest.raises(UsageError, match="no suite is left"):
        notebook.backtest(TRACES, selection=none)


def test_a_name_is_no_list_of_predictors() -> None:
    """Its letters would be names."""
    with pytest.raises(UsageError, match=r"'max', not a list"):
        notebook.predict([], predictors="max")
