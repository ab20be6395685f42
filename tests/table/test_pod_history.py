"""Usage of pods over the last windows: by name or UID, also of deleted pods."""

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from pipeline.errors import RecordError
from pipeline.table import Table
from pipeline.table.apply_records import apply_pod_points
from pipeline.table.pod_history import PodHistory
from pipeline.topics.registry import WINDOWS
from pipeline.topics.windows import Window, departure, encode_window, retraction
from tests.processors.joined import END_MS, NODE_ROW, header, joined, known_pod, logged, pod_row
from tests.processors.joined import view_of as view

END = END_MS / 1000


def window(end: int, node: str = "node-1", **cores: float) -> Window:
    """A window in which each pod, by UID, uses so many cores; its name is the first letter."""
    rows = [pod_row(uid, cpu_cores_avg=used, memory_bytes_avg=64.0) for uid, used in cores.items()]
    pods = [known_pod(uid, name=uid[0]) for uid in cores]
    return logged(joined(NODE_ROW, *rows, view=view(*pods), of=header(node, end)))


def history(*windows: Window, length: int = 4) -> PodHistory:
    result = PodHistory(length)
    for each in windows:
        assert result.put(each)
    return result


def cores(found: PodHistory, pod: str, node: str = "node-1") -> list[tuple[float, float]]:
    """End (in windows) and cores of each window of a pod."""
    series = found.get(node, pod)
    assert series is not None
    ends = ((series.end_seconds - END) / 30).tolist()
    return list(zip(ends, series.cpu_cores.tolist(), strict=True))


def test_a_pod_is_known_by_name_and_by_uid() -> None:
    found = history(window(0, a1=1.0, b1=2.0), window(1, a1=3.0, b1=4.0))
    assert cores(found, "shop/a") == cores(found, "a1") == [(0, 1.0), (1, 3.0)]
    assert cores(found, "shop/b") == [(0, 2.0), (1, 4.0)]
    assert [found.get("node-1", "shop/c"), found.get("other", "shop/a")] == [None, None]


@pytest.mark.parametrize("span_seconds", [0.0, 1e-9, 1.0])
@pytest.mark.parametrize("percent", [None, 90])
def test_usage_over_less_than_a_window_is_that_of_the_last_one(
    span_seconds: float, percent: int | None
) -> None:
    found = history(window(0, a1=1.0), window(1, a1=3.0))
    assert found.usage("node-1", span_seconds, percent)["a1"][0] == 3.0


def test_only_the_last_windows_are_stored() -> None:
    found = history(*(window(end, a1=float(end)) for end in range(9)))
    assert cores(found, "a1") == [(end, float(end)) for end in range(5, 9)]
    assert cores(history(window(0, a1=1.0), window(1, a1=2.0), length=1), "a1") == [(1, 2.0)]


def test_a_deleted_pod_stays_until_its_last_window_is_forgotten() -> None:
    windows = [window(0, a1=1.0, b1=9.0), *(window(end, a1=1.0) for end in range(1, 4))]
    assert cores(history(*windows), "shop/b") == [(0, 9.0)]
    assert history(*windows, window(4, a1=1.0)).get("node-1", "shop/b") is None


def test_of_pods_of_one_name_the_newest_counts() -> None:
    found = history(window(0, a1=1.0), window(1, a1=1.0, a2=5.0), window(2, a2=6.0))
    assert cores(found, "shop/a") == [(1, 5.0), (2, 6.0)]
    assert cores(found, "a1") == [(0, 1.0), (1, 1.0)]


def test_a_window_that_does_not_end_later_is_refused() -> None:
    found = history(window(1, a1=1.0))
    assert [found.put(window(1, a1=9.0)), found.put(window(0, a1=9.0))] == [False, False]
    assert cores(found, "a1") == [(1, 1.0)]


def test_an_exporter_counts_at_once_in_place_of_a_provider_and_not_the_reverse() -> None:
    def of(end: int, **origin: str) -> Window:
        head = header("node-1", end, **({"machine_id": ""} | origin))
        sent = joined(NODE_ROW, pod_row("a", cpu_cores_avg=1.0), of=head)
        return logged(replace(sent, appended_ms=END_MS + 30_000 * end))

    found = history(of(0, source="prometheus"))
    assert not found.put(of(1, source="metrics-server"))
    assert found.put(of(1, machine_id="m1"))
    assert not found.put(of(2, source="prometheus"))


def test_a_second_machine_of_one_name_counts_after_a_silence_of_the_first() -> None:
    """As in the models, by the broker's clock: that of the second machine may be fast."""

    def of_machine(machine: str, end: int, appended: int, pod: str) -> Window:
        head = header("node-1", end, machine_id=machine)
        sent = joined(NODE_ROW, pod_row(pod, cpu_cores_avg=1.0), of=head)
        return logged(replace(sent, appended_ms=END_MS + 30_000 * appended))

    found = history(of_machine("m1", 0, 0, "a1"))
    assert not found.put(of_machine("m2", 2, 1, "b1"))
    assert found.put(of_machine("m1", 1, 1, "a1"))
    assert cores(found, "a1") == [(0, 1.0), (1, 1.0)]
    assert found.put(of_machine("m2", 5, 3, "b1"))
    assert cores(found, "b1") == [(5, 1.0)]


def test_a_departure_removes_the_node() -> None:
    found = history(window(0, a1=1.0), window(0, node="other", c1=2.0))
    assert found.put(departure("node-1", END_MS))
    assert (len(found), found.get("node-1", "a1")) == (1, None)


@pytest.mark.parametrize("end_of_node", [departure, retraction])
def test_an_end_of_the_node_before_its_last_window_is_refused(
    end_of_node: Callable[[str, int], Window],
) -> None:
    """Models ignore it, too: a worker that was paused writes what it knew of the node back then."""
    found = history(window(0, a1=1.0))
    began_ms = window(0).appended_ms - 30_000
    assert not found.put(end_of_node("node-1", began_ms - 1))
    assert cores(found, "a1") == [(0, 1.0)]
    assert found.put(end_of_node("node-1", began_ms))
    assert len(found) == 0


def test_unknown_usage_is_nan_and_a_missing_pod_has_no_window() -> None:
    unknown = logged(joined(NODE_ROW, pod_row("a1", cpu_cores_avg=2.0), of=header(end=1)))
    series = history(window(0, a1=1.0), unknown, window(2)).get("node-1", "a1")
    assert series is not None
    assert series.cpu_cores.tolist() == [1.0, 2.0]
    assert np.isnan(series.memory_bytes).tolist() == [False, True]


def test_records_of_windows_are_applied_and_others_are_refused() -> None:
    table = Table(pod_windows=4)
    value = encode_window(window(0, a1=1.0))
    assert apply_pod_points(table, WINDOWS, b"node-1", value)
    assert not apply_pod_points(table, WINDOWS, b"node-1", value)
    assert cores(table.pod_history, "shop/a") == [(0, 1.0)]
    for key, wrong in ((b"other", value), (b"node-1", None), (b"node-1", b"{"), (None, value)):
        with pytest.raises(RecordError):
            apply_pod_points(table, WINDOWS, key, wrong)
