"""Containers in samples: a list in the row of their pod, within bounds."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import InvalidRecordError
from pipeline.topics.pod_columns import DecodedPods, encode_pod_columns
from pipeline.topics.sample_rows import read_rows, read_samples
from pipeline.topics.samples import (
    CONTAINERS,
    MAX_CONTAINERS,
    MAX_CONTAINERS_PER_POD,
    SampleBatch,
    SampleContainer,
    encode_samples,
)
from pipeline.topics.windows import WindowRows, decode_window, encode_window
from tests.topics import golden
from tests.topics.hostile import HEADER, sample

A, B = "a0" * 32, "b1" * 32
_CONTAINER = pa.struct({"id": pa.string(), "cpu_cores": pa.float64(), "memory_bytes": pa.float64()})


def rows_with(containers: list[list[SampleContainer]]) -> list[dict[str, Any]]:
    pods = [
        {"kind": "pod", "id": f"pod-{9 - place}", CONTAINERS: of_pod}
        for place, of_pod in enumerate(containers)
    ]
    return [{"kind": "node", "id": "", "coverage": 1.0}, *pods]


def encoded(containers: Any, kinds: tuple[str, ...] = ("node", "pod")) -> bytes:
    """A sample with this list of containers, one item for each row."""
    columns = {
        "kind": list(kinds), "id": [f"{kind}-0" for kind in kinds],
        "statistics": pa.array([[]] * len(kinds), pa.list_(pa.float64(), 0)),
        CONTAINERS: containers if isinstance(containers, pa.Array)
        else pa.array(containers, pa.list_(_CONTAINER)),
    }  # fmt: skip
    return sample(columns)


def container(id: str | None = A, cpu: float = 0.5) -> dict[str, Any]:
    return {"id": id, "cpu_cores": cpu, "memory_bytes": 1.0}


def test_usage_is_in_the_order_of_pods_by_uid() -> None:
    # pod-9 comes first in the sample, and last by UID.
    sent = [
        [SampleContainer(B, 2.0, None), SampleContainer(A, 1.0, 10.0)],
        [],
        [SampleContainer(A, None, 20.0)],
    ]
    data = encode_samples(SampleBatch(HEADER, rows_with(sent)))
    read = read_rows(data)
    assert read.listing.uids == ("pod-7", "pod-8", "pod-9")
    assert read.listing.container_ids == ((A,), (), (B, A))
    expected = [[np.nan, 20.0], [2.0, np.nan], [1.0, 10.0]]
    assert np.array_equal(read.container_usage, expected, equal_nan=True)
    assert [row.get(CONTAINERS, []) for row in read_samples(data).rows[1:]] == sent
    replaced = read.replace(read.numbers, read.points, read.container_usage * 2)
    assert replaced.listing is read.listing
    assert np.array_equal(replaced.container_usage, np.array(expected) * 2, equal_nan=True)


def test_a_sample_without_containers_is_as_before() -> None:
    rows = rows_with([[], []])
    plain = [{key: value for key, value in row.items() if key != CONTAINERS} for row in rows]
    read = read_rows(encode_samples(SampleBatch(HEADER, plain)))
    assert (read.listing.container_ids, read.container_lists) == ((), None)
    assert read.container_usage.shape == (0, 2)
    assert read_rows(encode_samples(SampleBatch(HEADER, rows))).listing.container_ids == ()


def test_equal_listings_are_one_object_and_another_id_makes_another() -> None:
    first, second, other = (
        read_rows(encode_samples(SampleBatch(HEADER, rows_with([[SampleContainer(id, cpu, 1.0)]]))))
        for id, cpu in ((A, 0.5), (A, 0.75), (B, 0.5))
    )
    assert first.listing is second.listing
    assert first.listing is not other.listing


def test_lists_that_begin_later_are_read_at_their_places() -> None:
    values = pa.array([container("z"), container(A, 0.25), container("y")], _CONTAINER)
    lists = pa.ListArray.from_arrays(pa.array([1, 1, 2], pa.int32()), values)
    read = read_rows(encoded(lists))
    assert read.listing.container_ids == ((A,),)
    assert read.container_usage.tolist() == [[0.25, 1.0]]


@pytest.mark.parametrize(
    ("containers", "says"),
    [
        ([[container()], []], "a node has containers"),
        ([[], [container(), container()]], "same id"),
        ([[], [container(None)]], "no id"),
        ([[], [None]], "null"),
        ([[], None], "null"),
        ([[], [container('a"')]], "forbidden character"),
        ([[], [container("a" * 254)]], "too long"),
        ([[], [container(str(i)) for i in range(MAX_CONTAINERS_PER_POD + 1)]], "a pod has more"),
        ([[], ["a"]], "column 'containers' is"),
    ],
)
def test_invalid_containers_are_refused(containers: Any, says: str) -> None:
    if isinstance(containers[1], list) and containers[1] == ["a"]:
        containers = pa.array(containers, pa.list_(pa.string()))
    with pytest.raises(InvalidRecordError, match=says):
        read_rows(encoded(containers))


def test_more_containers_than_a_node_runs_are_refused() -> None:
    pods = MAX_CONTAINERS // MAX_CONTAINERS_PER_POD + 1
    each = [SampleContainer(f"{i}", 0.5, 1.0) for i in range(MAX_CONTAINERS_PER_POD)]
    rows: list[dict[str, Any]] = [{"kind": "node", "id": ""}]
    rows += [{"kind": "pod", "id": f"pod-{i:03}", CONTAINERS: each} for i in range(pods)]
    with pytest.raises(InvalidRecordError, match=f"more than {MAX_CONTAINERS} containers"):
        read_rows(encode_samples(SampleBatch(HEADER, rows)))
    assert len(read_rows(encode_samples(SampleBatch(HEADER, rows[:-1]))).container_usage) == 2048


def test_a_window_names_each_container_or_none_of_a_pod() -> None:
    window = decode_window(encode_window(golden.window_record()))
    assert window.rows.pods.container_names == (("mesh", None), None)
    pods = DecodedPods(pod_class=("prod", "prod"), container_names=(("mesh",), None))
    window = type(window)(
        **{name: getattr(window, name) for name in window.__struct_fields__ if name != "rows"},
        rows=WindowRows(window.rows.sample, encode_pod_columns(pods)),
    )
    with pytest.raises(InvalidRecordError, match="names 1 of 2 containers"):
        decode_window(encode_window(window))
