"""The log of a small simulated cluster, as the join writes it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pipeline.kafka.partition import partition_of
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.processors.join.pod_facts import pod_row
from pipeline.processors.join.sample_join import NodeObjects, join
from pipeline.sources.simulated_nodes import SimulatedNode
from pipeline.topics.nodes import Strategy
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.samples import encode_samples
from pipeline.topics.windows import Window, decode_window, departure, encode_window, retraction
from tests.archive.archives import write

START = 1_764_374_400  # midnight, 29 November 2025
LENGTH = 600
STRATEGY = Strategy(cold_start_seconds=3600.0)


def simulated_windows(days: float, nodes: int = 3, pods: int = 8) -> Iterator[Window]:
    """Windows of ten minutes, those of one time together, by node."""
    fleet = [SimulatedNode(25, number, pods) for number in range(nodes)]
    for sequence in range(round(days * 86_400 / LENGTH)):
        start = START + sequence * LENGTH
        for node in fleet:
            rows = {uid: pod_row(pod) for uid, pod in node.pods(start, start + LENGTH).items()}
            sample = node.sample(start, start + LENGTH, epoch=1, sequence=sequence)
            window = join(
                read_rows(encode_samples(sample)), NodeObjects(node.record, rows), STRATEGY,
                sample_offset=sequence, appended_ms=1000 * (start + LENGTH + 1),
            )  # fmt: skip
            yield decode_window(encode_window(window))


def logged(windows: Iterator[Window], partitions: int = 2) -> list[LoggedWindow]:
    """These windows as records of the topic."""
    offsets = [0] * partitions
    records = []
    for window in windows:
        partition = partition_of(window.header.node, partitions)
        records.append(LoggedWindow(partition, offsets[partition], window))
        offsets[partition] += 1
    return records


def disturbed(records: Sequence[LoggedWindow], seed: int) -> list[LoggedWindow]:
    """These records with some missing, some repeated, some late, and some ends of nodes."""
    random = np.random.default_rng(seed)
    places: list[tuple[int, int, LoggedWindow]] = []
    for place, record in enumerate(records):
        for _ in range(random.choice(3, p=(0.1, 0.8, 0.1))):
            delay = int(random.integers(0, 30)) if random.random() < 0.1 else 0
            places.append((place + delay, len(places), record))
        if random.random() < 0.01:
            end = departure if random.random() < 0.5 else retraction
            header, appended_ms = record.window.header, record.window.appended_ms
            places.append(
                (place, len(places), record._replace(window=end(header.node, appended_ms)))
            )
    return [
        LoggedWindow(record.partition, offset, record.window)
        for offset, (_, _, record) in enumerate(sorted(places, key=lambda entry: entry[:2]))
    ]


def write_archive(directory: Path, records: Sequence[LoggedWindow]) -> Path:
    """An archive of these records; returns its directory."""
    directory.mkdir()
    write(directory, [*records], segments=3)
    return directory
