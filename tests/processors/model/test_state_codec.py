import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import CheckpointError
from pipeline.processors.model import alert_columns, state_codec
from pipeline.processors.model.bank import Bank, alert_rows
from pipeline.processors.model.model_config import ModelConfig
from pipeline.topics.nodes import Strategy
from tests.processors.windows import GIB, Pod, window


def _bank() -> Bank:
    bank = Bank()
    bank.apply(
        [
            window(1, [Pod("b", (1.0, GIB)), Pod("a", (2.0, GIB), age=np.nan)]),
            window(2, [Pod("a", (3.0, GIB), "batch")]),
        ]
    )
    return bank


STATE = _bank().encode_state("node-a")
BUCKETS = state_codec.decode(STATE).buckets


def _changed(**fields: object) -> bytes:
    return state_codec.encode(msgspec.structs.replace(state_codec.decode(STATE), **fields))


def test_state_has_absent_pods_and_the_last_window() -> None:
    state = state_codec.decode(STATE)
    assert state.uids == ("a", "b")
    assert state_codec.unpack(state.listed, "<u4", 1).tolist() == [0]
    assert state.applied == 2


def test_restored_state_replaces_models_and_encodes_to_the_same_bytes() -> None:
    other = Bank()
    other.apply([window(9, [Pod("z", (1.0, GIB))])])
    other.restore("node-a", STATE)
    assert other.encode_state("node-a") == STATE
    assert len(other.store.models) == len(_bank().store.models)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a node state"),
        (b"hello", "not a node state"),
        (b"x" * 100, "not a node state"),
        (STATE[:20], "damaged"),
        (STATE[:-1], "damaged"),
        (STATE + b"x", "damaged"),
        (STATE[:6] + b"\x01\x00" + STATE[8:], "version 1; this release reads 4"),
        (_changed(node="node-b"), "state of node 'node-b' given for node 'node-a'"),
        (_changed(fingerprint="0"), "shape what is learned or what predictors keep"),
        (_changed(weight=b"123"), "3 bytes instead of"),
        (_changed(samples=b""), "0 bytes instead of"),
        (_changed(classes=b""), "0 bytes instead of"),
        (_changed(allocatable=b""), "0 bytes instead of"),
        (_changed(listed=b"\x05\x00\x00\x00"), "lists a pod that it does not hold"),
        (_changed(bucket_counts=(b"", b"")), "0 bytes instead of"),
        (_changed(buckets=(BUCKETS[0][:-2] + b"\xff\xff",) * 2), "bytes|bucket"),
        (
            _changed(buckets=(np.full(len(BUCKETS[0]) // 2, 5000, "<u2").tobytes(), BUCKETS[1])),
            "bucket outside the layout",
        ),
    ],
)
def test_invalid_state_is_refused_and_leaves_the_bank_unchanged(data: bytes, says: str) -> None:
    bank = _bank()
    rows = len(bank.store.models)
    with pytest.raises(CheckpointError, match=says):
        bank.restore("node-a", data)
    assert bank.encode_state("node-a") == STATE
    assert len(bank.store.models) == rows


def test_valid_checksum_but_no_state_is_refused() -> None:
    no_state = state_codec.COMPRESSION.compress(b"\x80", asbytes=True)
    sized = [(8, b"not zstd"), *((size, no_state) for size in (0, 1, 9, 0xFFFFFFFF))]
    for body in (b"", b"123", *(state_codec.SIZE.pack(size) + rest for size, rest in sized)):
        data = (
            state_codec.HEADER.pack(state_codec.MAGIC, state_codec.VERSION, zlib.crc32(body)) + body
        )
        with pytest.raises(CheckpointError, match="cannot be read"):
            state_codec.decode(data)


@given(st.integers(0, len(STATE) - 1), st.integers(1, 255))
def test_any_flipped_byte_is_noticed(at: int, by: int) -> None:
    damaged = bytearray(STATE)
    damaged[at] ^= by
    with pytest.raises(CheckpointError):
        state_codec.decode(bytes(damaged))


def test_other_settings_of_peaks_can_take_the_state_over() -> None:
    bank = Bank(ModelConfig(strategy=Strategy(safety_margin_percent=20.0)))
    bank.restore("node-a", STATE)
    assert bank.encode_state("node-a") == STATE


def test_state_of_before_alerts_is_restored_with_its_models() -> None:
    """Written by the release before hot-node detection: models must not be rebuilt for it."""
    data = (Path(__file__).parents[2] / "data" / "models" / "state-before-alerts.bin").read_bytes()
    bank = Bank()
    bank.restore("node-a", data)
    assert bank.encode_state("node-a") == STATE
    assert state_codec.decode(data).alerts == {}


def test_alerts_of_another_release_are_restored_as_none() -> None:
    columns, rows = alert_rows([(bank := _bank(), "node-a")])
    columns["alert_window_ms"][rows] = 7
    columns["alert_level"][rows] = 2
    state = bank.encode_state("node-a")
    alerts = state_codec.decode(state).alerts
    assert alerts.keys() == alert_columns.COLUMNS.keys()
    for other in ({}, {"alert_level": b"\2"}, alerts | {"alert_level": b"123"}):
        bank.restore("node-a", _changed(alerts=other))
        assert bank.encode_state("node-a") == STATE
    bank.restore("node-a", state)
    assert bank.encode_state("node-a") == state
