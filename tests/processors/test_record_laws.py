"""The same log gives the same records bit by bit: whole windows through join, bank and report.

However windows are batched, whichever nodes share a bank, and wherever a bank was saved and read
back: the bytes of predictions, node states and models are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import RecordError
from pipeline.processors.join.sample_join import NodeObjects, join
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig, Profile
from pipeline.processors.model.result_records import encode_node_states, encode_prediction
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.topics.node_state import Counters
from pipeline.topics.nodes import Strategy
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.windows import decode_window, encode_window
from tests.processors.joined import (
    DEFAULT,
    END_MS,
    GIB,
    VIEWS,
    Row,
    header,
    known_pod,
    read,
    rows,
    view_of,
)
from tests.topics import golden
from tests.topics.hostile import bit_flips

# Half-lives of 60 s and 90 s: references move within a stream, by 100 of them at once.
CONFIG = ModelConfig(
    profile=Profile(half_life_seconds=(60.0, 90.0)),
    strategy=Strategy(cold_start_seconds=90.0, cold_start_samples=2),
    expiration_seconds=120.0,
)
POLICY = "usageWithPageCache"
NODES = ("node-a", "node-b", "node-c", "node-d")


class Logged(NamedTuple):
    """A record of the log."""

    offset: int
    value: bytes


class Outcome(NamedTuple):
    """The records written for each node, in order, and the state that was left."""

    records: dict[str, list[bytes]]
    states: dict[str, bytes]


Save = Callable[[Bank], Bank]


def read_back(bank: Bank) -> Bank:
    """A new bank in which rows lie elsewhere, with the models of this one."""
    again = Bank(CONFIG)
    for node in reversed(bank.nodes):
        again.restore(node, bank.encode_state(node))
    return again


def run(log: Sequence[Logged], batches: Iterator[int], save: Save = lambda bank: bank) -> Outcome:
    """Work off the log in batches of these sizes, cut where a node would be twice in one."""
    bank = Bank(CONFIG)
    records: dict[str, list[bytes]] = {}
    rest = list(log)
    while rest:
        batch, rest = _cut(rest, next(batches))
        windows = [(offset, decode_window(value)) for offset, value in batch]
        outcomes = bank.apply(WindowBatch([w for _, w in windows]).training("p90"))
        applied = [w for w, o in zip(windows, outcomes, strict=True) if o.status == "applied"]
        nodes = [window.header.node for _, window in applied]
        if applied:
            peaks = bank.peaks(nodes)
            positions = [{"generation": 0, "offset": offset, "epoch": 0} for offset, _ in applied]
            states = encode_node_states(
                WindowBatch([window for _, window in applied]),
                peaks.summaries,
                bank.recent_usage(nodes),
                [Counters()] * len(applied),
                [None] * len(applied),
                [()] * len(applied),
                [{}] * len(applied),
                positions,
            )
            for (_, window), peak, position, state in zip(
                applied, peaks, positions, states, strict=True
            ):
                prediction = encode_prediction(window, peak, position)
                records.setdefault(peak.node, []).extend((prediction, state))
        bank = save(bank)
    return Outcome(records, {node: bank.encode_state(node) for node in bank.nodes})


def _cut(log: list[Logged], size: int) -> tuple[list[Logged], list[Logged]]:
    seen: set[str] = set()
    for at, (_, value) in enumerate(log[:size]):
        node = decode_window(value).header.node
        if node in seen:
            return log[:at], log[at:]
        seen.add(node)
    return log[:size], log[size:]


def always(size: int) -> Iterator[int]:
    while True:
        yield size


def any_size(random: Random) -> Iterator[int]:
    while True:
        yield random.choice([1, 2, 3, 100])


def of_nodes(log: Sequence[Logged], nodes: set[str]) -> list[Logged]:
    return [record for record in log if decode_window(record.value).header.node in nodes]


def sometimes(random: Random) -> Save:
    return lambda bank: read_back(bank) if random.random() < 0.3 else bank


def check_all_ways(log: Sequence[Logged], random: Random) -> None:
    whole = run(log, always(100))
    assert run(log, always(1)) == whole
    assert run(log, any_size(random)) == whole
    assert run(log, any_size(random), sometimes(random)) == whole
    left = {node for node in NODES if random.random() < 0.5}
    one = run(of_nodes(log, left), any_size(random))
    two = run(of_nodes(log, set(NODES) - left), always(100), sometimes(random))
    assert one.records | two.records == whole.records
    assert one.states | two.states == whole.states


def log_of(samples: Sequence[tuple[str, int, Sequence[Row], NodeObjects]]) -> list[Logged]:
    """The log that the join writes for (node, end, rows, view)."""
    windows = [
        join(
            read(*rows, of=header(node, end)), view, DEFAULT, sample_offset=offset,
            appended_ms=END_MS + end * 30_000,
        )
        for offset, (node, end, rows, view) in enumerate(samples)
    ]  # fmt: skip
    return [Logged(offset, encode_window(window)) for offset, window in enumerate(windows)]


@st.composite
def logs(draw: st.DrawFn) -> list[Logged]:
    """Windows of all nodes with anything in them, with gaps, duplicates and late ones."""
    ends = dict.fromkeys(NODES, 0)
    samples = []
    for _ in range(draw(st.integers(1, 8))):
        node = draw(st.sampled_from(NODES))
        # 320 windows are more than 100 half-lives of either resource.
        ends[node] += draw(st.sampled_from([1, 1, 1, 1, 0, -1, 3, 9, 320]))
        samples.append((node, ends[node], draw(rows()), draw(VIEWS)))
    return log_of(samples)


@given(logs(), st.randoms(use_true_random=False))
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)
def test_the_same_log_gives_the_same_bits(log: list[Logged], random: Random) -> None:
    check_all_ways(log, random)


def test_windows_with_flipped_bits_are_refused_or_learned() -> None:
    """The log is ours alone, but a worker that ends on a record ends on it again and again."""
    learned = 0
    for data in bit_flips(encode_window(golden.window_record()), stride=101):
        with suppress(RecordError):
            decode_window(data)
            run([Logged(0, data)], always(1), read_back)
            learned += 1
    assert learned > 10


# -- many pods: lengths at which array operations change their way of working


def busy_log(seed: int) -> list[Logged]:
    """Nodes of 0 to 480 pods that come and go, with usage of all magnitudes: together more rows
    than the bank works off one way, alone fewer."""
    random = np.random.default_rng(seed)
    samples = []
    for end in range(6):
        for node, most in zip(NODES, (0, 7, 300, 480), strict=True):
            end_of_node = end + (400 if end > 3 and node != "node-c" else 0)
            samples.append((node, end_of_node, *_busy_node(random, most)))
    return log_of(samples)


def _busy_node(random: np.random.Generator, most: int) -> tuple[list[Row], NodeObjects]:
    listed = np.flatnonzero(random.random(most) < 0.9).tolist()
    random.shuffle(listed)
    entities = [("node", ""), *(("pod", f"p{i}") for i in listed), ("host_app", "a"),
                ("host_app", "b"), ("host_app", "c")]  # fmt: skip
    result: list[Row] = [
        {
            "kind": kind, "id": uid, "coverage": 0.9,
            "cpu_cores_p90": cpu, "cpu_cores_avg": cpu / 3,
            "memory_with_page_cache_bytes_p90": memory * GIB, "memory_bytes_avg": memory * 7e8,
        }
        for (kind, uid), cpu, memory in zip(
            entities,
            np.exp(random.normal(-1.0, 3.0, len(entities))).tolist(),
            np.exp(random.normal(-1.0, 2.0, len(entities))).tolist(),
            strict=True,
        )
    ]  # fmt: skip
    pods: list[PodRecord] = [
        known_pod(
            f"p{i}", pod_class=str(random.choice(["prod", "mid", "batch", "none"])),
            requests=Resources(cpu_millicores=int(random.integers(5000)), memory_bytes=1 << 29),
            created_at="2023-11-14T22:13:30Z",
        )
        for i in range(0, most, 2)
    ]  # fmt: skip
    return result, view_of(*pods)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_log_of_many_pods_gives_the_same_bits(seed: int) -> None:
    check_all_ways(busy_log(seed), Random(seed))


def test_the_busy_log_crosses_both_ways_of_summing_and_moves_references() -> None:
    log = busy_log(1)
    counts = [len(decode_window(record.value).rows) for record in log]
    assert max(counts) < 512 < sum(counts[:4])
    whole = run(log, always(100))
    assert all(len(result) == 12 for result in whole.records.values())
