"""What the join reads of a pod: no text so long that it would spoil the window of the node."""

from typing import Any

import msgspec
import pytest

from pipeline.errors import InvalidRecordError
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.pods import Owner, PodFacts, check_pod
from tests.topics.golden import POD_RECORD

LONGEST = "ä" * 126 + "x"


def facts(**changes: Any) -> PodFacts:
    said = decode_json(PodFacts, encode_json(POD_RECORD))
    return msgspec.structs.replace(said, **changes)


def test_what_the_join_reads_is_what_the_record_says() -> None:
    said = facts()
    for name in PodFacts.__struct_fields__:
        assert getattr(said, name) == getattr(POD_RECORD, name), name
    check_pod(said)


@pytest.mark.parametrize("name", ["cgroup_uid", "namespace", "name", "qos", "phase"])
def test_texts_are_as_long_as_kubernetes_allows(name: str) -> None:
    check_pod(facts(**{name: LONGEST}))
    with pytest.raises(InvalidRecordError, match="has a text of 254 bytes, more than 253"):
        check_pod(facts(**{name: LONGEST + "y"}))


def test_those_of_the_owner_too() -> None:
    check_pod(facts(owner=None))
    check_pod(facts(owner=Owner(kind=LONGEST, name=LONGEST)))
    for owner in (Owner(kind=LONGEST + "y", name=""), Owner(kind="", name=LONGEST + "yy")):
        with pytest.raises(InvalidRecordError, match=r"25[45] bytes"):
            check_pod(facts(owner=owner))
