"""What a newer release writes is read, or refused with a sentence that says what to do."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from pipeline.errors import InvalidRecordError, UnsupportedVersionError
from pipeline.topics.codec import Record
from pipeline.topics.registry import TOPICS
from tests.topics.golden import GOLDEN, Golden

RECORDS = [kind for kind in GOLDEN if isinstance(kind.record, Record)]
ENCODERS: dict[str, Any] = {"json": msgspec.json.encode, "msgpack": msgspec.msgpack.encode}
DECODERS: dict[str, Any] = {"json": msgspec.json.decode, "msgpack": msgspec.msgpack.decode}
LATER = "a-later-value"


def newer(value: Any) -> Any:
    """The value as a newer release might write it: each object has a further field."""
    if isinstance(value, msgspec.Struct):
        fields = {
            field.encode_name: newer(item)
            for field in msgspec.structs.fields(value)
            if (item := getattr(value, field.name)) is not msgspec.UNSET
        }
        return fields | {"added_later": [1, {"x": LATER}]}
    if isinstance(value, dict):
        return {key: newer(item) for key, item in value.items()}
    return [newer(item) for item in value] if isinstance(value, list | tuple) else value


def with_later_values(kind: type, value: Any) -> Iterator[Any]:
    """Yield copies of an object of type `kind`, each with another enumerated value replaced."""
    hints = msgspec.inspect.type_info(kind)
    yield from _replaced(hints, value)


def _replaced(info: Any, value: Any) -> Iterator[Any]:
    match info:
        case msgspec.inspect.LiteralType() | msgspec.inspect.EnumType() if isinstance(value, str):
            yield LATER
        case msgspec.inspect.Metadata():
            yield from _replaced(info.type, value)
        case msgspec.inspect.UnionType():
            for each in info.types:
                yield from _replaced(each, value)
        case msgspec.inspect.StructType() if isinstance(value, dict):
            for field in info.fields:
                for item in _replaced(field.type, value.get(field.encode_name)):
                    yield value | {field.encode_name: item}
        case msgspec.inspect.DictType() if isinstance(value, dict):
            for key, item in value.items():
                for _ in _replaced(info.key_type, key):
                    yield {LATER: item}
                for other in _replaced(info.value_type, item):
                    yield value | {key: other}
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType() if value:
            for other in _replaced(info.item_type, value[0]):
                yield [other, *value[1:]]


def test_every_topic_of_records_is_here() -> None:
    written = {kind.name for kind in GOLDEN}
    for topic in TOPICS:
        assert any(name.startswith(topic.name) for name in written) or topic.name == "fleet", topic


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.name)
def test_fields_of_a_newer_release_are_ignored(kind: Golden) -> None:
    assert kind.read(ENCODERS[kind.suffix](newer(kind.record))) == kind.record


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.name)
def test_a_newer_version_is_refused_and_says_what_to_do(kind: Golden) -> None:
    data = ENCODERS[kind.suffix]({"version": 2, "node": [LATER]})
    with pytest.raises(UnsupportedVersionError, match="upgrade the readers before the writers"):
        kind.read(data)


@pytest.mark.parametrize("name", ["samples", "windows", "windows-departure"])
def test_a_newer_version_of_samples_and_windows_is_refused(name: str) -> None:
    (kind,) = (kind for kind in GOLDEN if kind.name == name)
    data = kind.write(kind.record).replace(b'"version":1', b'"version":2', 1)
    with pytest.raises(UnsupportedVersionError, match="upgrade the readers before the writers"):
        kind.read(data)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.name)
def test_an_enumerated_value_of_a_newer_release_is_read_or_refused(kind: Golden) -> None:
    plain = DECODERS[kind.suffix](kind.write(kind.record))
    for changed in with_later_values(type(kind.record), plain):
        data = ENCODERS[kind.suffix](changed)
        with pytest.raises(InvalidRecordError, match=f"{LATER}.*upgrade the readers before"):
            kind.read(data)


def test_enumerated_values_are_found() -> None:
    (alert,) = (kind.record for kind in GOLDEN if kind.name == "alerts")
    changed = [*with_later_values(type(alert), msgspec.to_builtins(alert))]
    assert {name for each in changed for name, value in each.items() if value == LATER} >= {
        "rule", "severity", "transition"
    }  # fmt: skip
