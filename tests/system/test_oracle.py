"""The oracle tells results that follow from the log from those that do not; without a broker."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pipeline.settings import Settings
from pipeline.topics.windows import encode_window
from tests.processors.joined import GIB, NODE_ROW, header, joined, pod_row
from tests.system.harness import Logs, Record
from tests.system.oracle import Expected, never_so, undisturbed

Result = dict[str, Any]


def record(offset: int, value: bytes | None) -> Record:
    return Record(0, offset, b"node-1", value, 0.0, {})


@pytest.fixture(scope="module")
def expected() -> Expected:
    """Of a node that was seen for five windows, its pod using more in each."""
    windows = [
        joined(
            NODE_ROW,
            pod_row("a", cpu_cores_p90=0.5 + end, memory_bytes_p90=GIB),
            of=header(end=end),
        )
        for end in range(5)
    ]
    log = [record(10 + at, encode_window(window)) for at, window in enumerate(windows)]
    return undisturbed({0: log}, Settings())


def published(expected: Expected, kind: str) -> dict[int, Result]:
    """What a worker of epoch 7 publishes of these windows, by their offsets."""
    return {
        offset: msgspec.json.decode(said) | {"epoch": 7}
        for (of, _, offset), said in expected.said.items()
        if of == kind
    }


def logs(kind: str, *values: Result | None) -> Logs:
    records = [
        record(at, None if value is None else msgspec.json.encode(value))
        for at, value in enumerate(values)
    ]
    return {"predictions": {}, "node-state": {}} | {kind: {0: records}}


KINDS = pytest.mark.parametrize("kind", ["predictions", "node-state"])


@KINDS
def test_what_follows_from_its_window_is_right_however_often_it_is_said(
    expected: Expected, kind: str
) -> None:
    said = published(expected, kind)
    assert min(said) == 10
    again = (said[10] | {"epoch": 9}, None)
    assert never_so(logs(kind, *said.values(), *again), expected) == []


@KINDS
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda one, _: one | {"predictor": "another"}, "predictor: another != percentile"),
        (lambda one, other: other | {"offset": one["offset"]}, "as_of: "),
        (lambda one, _: one | {"offset": 9}, ""),
        (
            lambda one, _: {name: one[name] for name in one if name != "simulated"},
            "simulated: None",
        ),
        (lambda one, _: one | {"more": 1}, ""),
    ],
    ids=["changed", "of another window", "of no window", "less", "more"],
)
def test_what_never_was_so_is_found_though_it_was_overwritten(
    expected: Expected, kind: str, wrong: Callable[[Result, Result], Result], why: str
) -> None:
    first, *_, last = published(expected, kind).values()
    false = wrong(first, last)
    (found,) = never_so(logs(kind, false, first, last), expected)
    assert f"{kind} of offset {false['offset']} never was so" in found
    assert why in found
