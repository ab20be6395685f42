"""The fields of a pod that the join reads, and the length of their texts."""

from typing import Any

import msgspec
import pytest

from pipeline.errors import InvalidRecordError
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.pods import Owner, PodFacts, check_pod
from tests.topics.golden import POD_RECORD

LONGEST = "ä" * 126 + "x"


def facts(**changes: Any) -> PodFacts:
    decoded = decode_json(PodFacts, encode_json(POD_RECORD))
    return msgspec.structs.replace(decoded, **changes)


def test_facts_equal_the_fields_of_the_record() -> None:
    decoded = facts()
    expected = {name: getattr(POD_RECORD, name) for name in PodFacts.__struct_fields__}
    assert msgspec.structs.asdict(decoded) == expected
    check_pod(decoded)


@pytest.mark.parametrize("name", ["cgroup_uid", "namespace", "name", "qos", "phase"])
def test_texts_longer_than_kubernetes_allows_are_refused(name: str) -> None:
    check_pod(facts(**{name: LONGEST}))
    with pytest.raises(InvalidRecordError, match="has a text of 254 bytes, more than 253"):
        check_pod(facts(**{name: LONGEST + "y"}))


def test_texts_of_the_owner_are_checked() -> None:
    check_pod(facts(owner=None))
    check_pod(facts(owner=Owner(kind=LONGEST, name=LONGEST)))
    for owner in (Owner(kind=LONGEST + "y", name=""), Owner(kind="", name=LONGEST + "yy")):
        with pytest.raises(InvalidRecordError, match=r"25[45] bytes"):
            check_pod(facts(owner=owner))
