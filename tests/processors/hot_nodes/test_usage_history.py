"""Mean and deviation of average usage from archived windows: known usage gives known thresholds."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import InvalidRecordError
from pipeline.processors.archive.archive_rows import LoggedWindow, archive_rows
from pipeline.processors.arrays import FloatArray
from pipeline.processors.hot_nodes.threshold_advice import NodeHistories, Present, advise
from pipeline.processors.hot_nodes.usage_history import USAGE_COLUMNS, UsageHistory
from pipeline.processors.join.pod_facts import pod_row as facts_of
from pipeline.processors.join.sample_join import NodeObjects
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.windows import Window, departure
from tests.processors.joined import GIB, NODE_ROW, header, joined, logged, pod_row

NOW = 1_700_000_040.0


def window(
    node: str, end: int, cores: float, *pods: tuple[str, str, float], **row: float
) -> Window:
    """A window of so many cores on average, and more at its 90th percentile."""
    records = {
        uid: facts_of(
            PodRecord(
                node=node, uid=uid, cgroup_uid=uid, namespace="b", name=uid, pod_class=pod_class,
                phase="Running", requests=Resources(cpu_millicores=1000),
            )
        )
        for uid, pod_class, _ in pods
        if pod_class != "no record"
    }  # fmt: skip
    rows = [
        pod_row(uid, cpu_cores_avg=used, cpu_cores_p90=2 * used, memory_bytes_avg=used * GIB)
        for uid, _, used in pods
    ]
    own = NODE_ROW | {"cpu_cores_avg": cores, "cpu_cores_p90": 1.5 * cores} | row
    made = joined(own, *rows, view=NodeObjects(None, records), of=header(node, end))
    return logged(made)


def history_of(windows: Sequence[Window], cuts: Sequence[int] = ()) -> UsageHistory:
    """Of these windows, in files that end at these places."""
    history = UsageHistory()
    records = [LoggedWindow(0, offset, each) for offset, each in enumerate(windows)]
    for start, end in zip([0, *cuts], [*cuts, len(records)], strict=True):
        if end > start:
            rows = pa.Table.from_batches([archive_rows(records[start:end])])
            history.add(rows.select([*USAGE_COLUMNS]))
    return history


def test_usage_of_a_known_distribution_gives_its_three_sigma() -> None:
    """Average usage is normal with mean 5 of 10 cores and deviation 0.5: the proposal is 65%. The
    90th percentiles of the windows are half as high again, and do not count."""
    random = np.random.default_rng(17)
    nodes = [f"node-{n}" for n in range(6)]
    usage = random.normal(5.0, 0.5, (400, len(nodes)))
    windows = [
        window(node, end, float(usage[end, n]))
        for end in range(len(usage))
        for n, node in enumerate(nodes)
    ]
    history = history_of(windows, [100, 1000, 1001])
    values = np.stack([history.values(node, NOW) for node in nodes], axis=1)
    np.testing.assert_allclose(values[0, :, 0], usage.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(values[1, :, 0], usage.std(axis=0), rtol=1e-9)
    assert values[2, :, 0].tolist() == [400 * 30.0] * 6
    assert values[3, :, 0].tolist() == [400.0] * 6
    percent: FloatArray = values * 10.0  # of ten cores
    known = NodeHistories(
        mean=percent[0], stdev=percent[1], seconds=np.full((6, 4), 2 * 86_400.0),
        usage=percent[0], is_fresh=np.ones(6, np.bool_),
    )  # fmt: skip
    thresholds = np.array([80.0, np.nan, np.nan, np.nan])
    cpu = advise(known, Present(thresholds, np.full(4, np.nan)))[0]
    assert cpu.three_sigma_percent == pytest.approx(65.0, abs=0.5)
    assert cpu.proposed_high_percent in (65.0, 66.0)


def test_usage_of_prod_is_that_of_its_pods_and_of_pods_that_may_be_prod() -> None:
    pods = [
        ("a", "prod", 1.0), ("b", "none", 0.5), ("c", "batch", 8.0), ("d", "no record", 0.25),
    ]  # fmt: skip
    history = history_of([window("n", 0, 9.0, *pods), window("n", 1, 9.0), window("n", 2, 9.0)])
    mean = history.values("n", NOW)[0]
    assert mean[2] == pytest.approx(1.75 / 3)
    assert mean[3] == pytest.approx(1.75 * GIB / 3)


def test_unknown_usage_is_not_zero() -> None:
    """Neither that of a window that was hardly measured, nor that of a node that is not there."""
    windows = [
        window("n", 0, 4.0), window("n", 1, float("nan")), window("n", 2, 9.0, coverage=0.4),
        window("blind", 0, float("nan"), memory_bytes_avg=float("nan")),
    ]  # fmt: skip
    history = history_of(windows)
    mean, deviation, _, samples = history.values("n", NOW)[:, 0]
    assert (mean, deviation, samples) == (4.0, 0.0, 1.0)
    assert np.isnan(history.values("blind", NOW)[:2, :2]).all()
    assert np.isnan(history.values("never-seen", NOW)).all()


def test_windows_of_a_second_source_and_ends_of_nodes_do_not_count() -> None:
    windows = [window("n", 0, 4.0), window("n", 0, 16.0), departure("n", 1_700_000_000_000)]
    assert history_of([*windows, window("n", 1, 4.0)]).values("n", NOW)[0, 0] == 4.0
    assert np.isnan(history_of([departure("n", 1_700_000_000_000)]).values("n", NOW)).all()


@pytest.mark.parametrize("cores", [-1.0, float("inf"), 1e300])
def test_impossible_usage_is_unknown(cores: float) -> None:
    history = history_of([window("n", 0, 4.0), window("n", 1, cores)])
    assert history.values("n", NOW)[:, 0].tolist() == [4.0, 0.0, 60.0, 1.0]


def test_usage_of_prod_is_unknown_with_that_of_a_pod() -> None:
    history = history_of([window("n", 0, 9.0, ("a", "prod", 1.0), ("b", "prod", float("nan")))])
    assert np.isnan(history.values("n", NOW)[0, 2])


@pytest.mark.parametrize(("coverage", "used"), [(np.inf, 2.0), (7.0, 2.0), (-np.inf, 0.0)])
def test_a_pod_was_measured_for_no_more_than_its_window(coverage: float, used: float) -> None:
    """Also where the pod of another window used nothing."""
    windows = [window("n", end, 9.0, ("a", "prod", 2.0 * end)) for end in (0, 1)]
    rows = archive_rows([LoggedWindow(0, offset, each) for offset, each in enumerate(windows)])
    rows = pa.Table.from_batches([rows.select([*USAGE_COLUMNS])])
    is_pod = np.array([kind == "pod" for kind in rows["kind"].to_pylist()])
    values = pa.array(np.where(is_pod, coverage, 1.0))
    history = UsageHistory()
    history.add(rows.set_column(rows.column_names.index("coverage"), "coverage", values))
    assert history.values("n", NOW)[0, 2] == used / 2


@pytest.mark.parametrize("column", ["node", "log_offset", "window_end", "kind"])
def test_rows_that_lack_what_they_need_are_invalid(column: str) -> None:
    rows = pa.Table.from_batches([archive_rows([LoggedWindow(0, 0, window("n", 0, 4.0))])])
    rows = rows.select([*USAGE_COLUMNS])
    place = rows.column_names.index(column)
    nothing = pa.nulls(len(rows), rows.schema.field(column).type)
    with pytest.raises(InvalidRecordError, match=f"no {column}"):
        UsageHistory().add(rows.set_column(place, column, nothing))
