"""Records survive JSON and MessagePack; other bytes raise an error that a dead letter can carry."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import (
    InvalidRecordError,
    RecordError,
    UndecodableRecordError,
    UnsupportedVersionError,
)
from pipeline.topics.checkpoints import Claim, NodeCheckpoint, RoundMarker
from pipeline.topics.codec import Record, decode_json, decode_pack, encode_json, encode_pack
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.resource_amounts import Usage
from tests.topics import golden
from tests.topics.hostile import bit_flips
from tests.topics.records import JSON_RECORDS, PACK_RECORDS, records


@given(st.one_of([records(kind) for kind in JSON_RECORDS]))
def test_json_round_trip(record: Record) -> None:
    assert decode_json(type(record), encode_json(record)) == record


@given(st.one_of([records(kind) for kind in PACK_RECORDS]))
def test_pack_round_trip(record: Record) -> None:
    assert decode_pack(type(record), encode_pack(record)) == record


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5)), st.randoms())
def test_equal_records_are_equal_bytes(labels: dict[str, str], random: Any) -> None:
    items = list(labels.items())
    random.shuffle(items)
    one = NodeRecord(node="n", labels=labels)
    other = NodeRecord(node="n", labels=dict(items))
    assert encode_json(one) == encode_json(other)


def test_version_is_the_first_field() -> None:
    assert encode_json(NodeRecord(node="n")).startswith(b'{"version":1,"node":"n"')


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_written_as_unknown(value: float) -> None:
    data = msgspec.json.encode(Usage(cpu_cores=value, memory_bytes=1.0))
    assert data == b'{"cpu_cores":null,"memory_bytes":1.0}'


def test_unknown_fields_are_accepted_at_every_level() -> None:
    data = b'{"version":1,"node":"n","new":[1,{"x":2}],"capacity":{"gpu":1,"cpu_millicores":5}}'
    record = decode_json(NodeRecord, data)
    assert record.capacity.cpu_millicores == 5


def test_missing_optional_fields_take_their_defaults() -> None:
    assert decode_json(NodeRecord, b'{"version":1,"node":"n"}') == NodeRecord(node="n")
    pod = b'{"version":1,"node":"n","uid":"u","cgroup_uid":"u","namespace":"s","name":"p"}'
    assert decode_json(PodRecord, pod).pod_class == "none"
    old = {"version": 1, "member": "w", "claimed_at": "x"}
    assert decode_pack(Claim, msgspec.msgpack.encode(old)).member == "w"


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        (PodRecord, b"", "PodRecord .*uid"),
        (PredictionRecord, b',"as_of":"x","offset":"5"', "PredictionRecord .*offset"),
    ],
)
def test_a_missing_field_and_one_of_the_wrong_type_are_named(
    kind: type[Record], fields: bytes, says: str
) -> None:
    with pytest.raises(InvalidRecordError, match=says):
        decode_json(kind, b'{"version":1,"node":"n"' + fields + b"}")


@pytest.mark.parametrize("version", [0, 2, 99, -1, 10**30])
def test_another_version_is_reported_even_if_the_schema_is_broken(version: int) -> None:
    data = msgspec.json.encode({"version": version, "node": 5})
    with pytest.raises(UnsupportedVersionError, match=f"version {version}, this build reads"):
        decode_json(NodeRecord, data)


def test_another_version_of_a_packed_record_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError):
        decode_pack(RoundMarker, msgspec.msgpack.encode({"version": 2}))


class Second(Record, frozen=True, kw_only=True):
    """A record type whose layout is in its second version."""

    other: int = 7
    version: int = 2


def test_each_type_has_its_own_version() -> None:
    assert decode_json(Second, b'{"version":2}').other == 7
    with pytest.raises(UnsupportedVersionError, match="version 1, this build reads version 2"):
        decode_json(Second, b'{"version":1}')


@pytest.mark.parametrize(
    "data",
    [
        b"", b" ", b"{", b"null", b"[]", b"1", b'"x"', b"{}", b'{"version":1}',
        b'{"version":"1","node":"n"}', b'{"version":1.5,"node":"n"}',
        b'{"version":true,"node":"n"}',
        b'{"version":1,"node":null}', b'{"version":1,"node":"\xff"}', b'{"version":1,"node":"n"',
        b'{"version":1,"node":"n"}{', b'\xef\xbb\xbf{"version":1,"node":"n"}',
        b'{"version":1,"node":"n","labels":{"a":1}}', b'{"version":1,"node":"n","labels":[]}',
        b'{"version":1,"node":"n","capacity":{"cpu_millicores":1e400}}',
        b'{"version":1,"node":"n","capacity":{"cpu_millicores":0.5}}',
        b'{"version":1,"node":"n","capacity":{"cpu_millicores":NaN}}',
        b'{"version":1,"node":"\\ud800"}', b'{"version":1,"node":"n","x":' + b"[" * 100_000,
        b"[" * 100_000, b'{"version":1' + b" " * 1_000_000,
        b"ARROW1\x00\x00", b"\x00" * 100, b"\xff\xff\xff\xff\x10\x00\x00\x00",
    ],
)  # fmt: skip
def test_json_of_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        decode_json(NodeRecord, data)


def test_deep_nesting_below_a_free_field_is_refused() -> None:
    head = (
        b'{"version":1,"node":"n","uid":"u","cgroup_uid":"u","namespace":"s","name":"p","affinity":'
    )
    with pytest.raises(UndecodableRecordError):
        decode_json(PodRecord, head + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}")


@given(st.binary(max_size=200), st.sampled_from([*JSON_RECORDS, *PACK_RECORDS]))
def test_random_bytes_are_refused(data: bytes, kind: type[Record]) -> None:
    for decode in (decode_json, decode_pack):
        with pytest.raises(RecordError):
            decode(kind, data)


def _valid() -> list[tuple[Any, type[Record], bytes]]:
    found: list[tuple[Any, type[Record], bytes]] = [
        (decode_json, type(record), encode_json(record))
        for record in (golden.NODE, golden.POD_RECORD, golden.PREDICTION, golden.NODE_STATE)
    ]
    return found + [
        (decode_pack, type(record), encode_pack(record))
        for record in (golden.CHECKPOINT, golden.MARKER, golden.CLAIM)
    ]


@pytest.mark.parametrize(
    ("decode", "kind", "data"), _valid(), ids=lambda v: getattr(v, "__name__", "")
)
def test_every_truncation_is_refused(decode: Any, kind: type[Record], data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(RecordError):
            decode(kind, data[:length])


@pytest.mark.parametrize(
    ("decode", "kind", "data"), _valid(), ids=lambda v: getattr(v, "__name__", "")
)
def test_every_flipped_bit_is_read_or_refused(decode: Any, kind: type[Record], data: bytes) -> None:
    for changed in bit_flips(data):
        with suppress(RecordError):
            assert isinstance(decode(kind, changed), kind)


@settings(max_examples=200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["version", "node", "uid", "peaks", "pods", "labels", "taints"]),
                inner,
                max_size=7,
            )
        ),
        max_leaves=12,
    ),
    st.sampled_from(JSON_RECORDS),
)
def test_any_json_is_read_or_refused(tree: Any, kind: type[Record]) -> None:
    with suppress(UndecodableRecordError, UnsupportedVersionError, InvalidRecordError):
        decode_json(kind, msgspec.json.encode(tree))


def test_huge_lengths_in_messagepack_are_refused_at_once() -> None:
    heads = (b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff")
    inner = (b"\x82\xa7version\x01\xa5state" + head for head in heads)
    for data in (*heads, *inner, b"\x91" * 100_000):
        with pytest.raises(RecordError):
            decode_pack(NodeCheckpoint, data)
