"""Gauges that the exporter reads from files, also from invalid ones."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_exporter.gauge_files import read_gauges
from node_exporter.sampler import Sampler
from node_exporter.window_aggregation import OpenWindow
from pipeline.clock import ManualClock
from pipeline.errors import KernelFileError, SettingsError
from pipeline.settings import ExporterSettings
from tests.node_exporter.fake_node import FakeNode

CONNTRACK = "example.com/conntrack"


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path, 2)


def settings(node: FakeNode, gauges: dict[str, str]) -> ExporterSettings:
    return replace(node.settings(), gauges=gauges)


async def test_a_window_has_the_mean_of_the_readings(node: FakeNode, tmp_path: Path) -> None:
    file = tmp_path / "count"
    clock = ManualClock()
    sampler = Sampler(settings(node, {CONNTRACK: str(file), "example.com/gone": "/none"}), clock)
    window = OpenWindow(30_000, 30_000, 1000)
    for at, text in ((5, "100\n"), (10, "300"), (15, "NaN"), (20, "-1"), (25, ""), (30, "1e999")):
        file.write_text(text)
        await clock.advance(5.0)
        collection = sampler.collect(at * 1000)
        window.add(collection)
        assert collection.errors["gauge"] == (1 if at <= 10 else 2)
    row = window.rows(4, 1)[0]
    assert row[CONNTRACK] == 200.0
    assert "example.com/gone" not in row


async def test_gauges_are_read_as_seldom_as_network_and_disks(
    node: FakeNode, tmp_path: Path
) -> None:
    file, clock = tmp_path / "count", ManualClock()
    file.write_text("7")
    sampler = Sampler(settings(node, {CONNTRACK: str(file)}), clock)
    read = []
    for at in range(1, 12):
        await clock.advance(1.0)
        read.append(CONNTRACK in sampler.collect(at * 1000).gauges)
    assert [at for at, was_read in enumerate(read) if was_read] == [0, 5, 10]


@pytest.mark.parametrize("content", ["", "x", "-1", "nan", "inf", "1" * 65, "1 2", "\x00"])
def test_what_is_not_one_number_is_an_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "count"
    file.write_text(content)
    ((_, error),) = read_gauges({CONNTRACK: str(file)})
    assert isinstance(error, KernelFileError)
    assert str(file) in str(error)


def test_a_pipe_without_a_writer_does_not_block(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ((_, error),) = read_gauges({CONNTRACK: str(pipe)})
    assert isinstance(error, KernelFileError)


@pytest.mark.parametrize(
    "names",
    [
        ["conntrack"], ["springtide.io/disk-read"], ["a.b/" + "x" * 10_000],
        [f"a.b/{number}" for number in range(9)],
    ],
    ids=["no domain", "a rate", "10 kB", "nine"],
)  # fmt: skip
def test_names_that_workers_would_ignore_are_refused(node: FakeNode, names: list[str]) -> None:
    with pytest.raises(SettingsError) as error:
        Sampler(settings(node, dict.fromkeys(names, "/proc/uptime")), ManualClock())
    assert error.value.key == "exporter.gauges"
    assert len(error.value.message) < 300
