"""Keys of checkpoints and pods are parsed as they were written, or refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError
from pipeline.topics.checkpoints import (
    claim_key,
    departed_key,
    marker_key,
    node_key,
    parse_key,
    skip_key,
)
from pipeline.topics.pods import pod_key, split_pod_key

_NODES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,60}[a-z0-9])?", fullmatch=True)


@given(_NODES, st.integers(0, 2**63 - 1), st.text(min_size=1, max_size=40))
def test_keys_of_each_kind_are_parsed(node: str, epoch: int, member: str) -> None:
    keys = (
        node_key(node, epoch), marker_key(epoch), claim_key(member), skip_key(epoch, 7),
        departed_key(node, epoch),
    )  # fmt: skip
    assert [parse_key(key) for key in keys] == [
        ("node", node, epoch), ("marker", "", epoch), ("claim", member, -1),
        ("skip", "7", epoch), ("departed", node, epoch),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "key",
    [
        b"", b"node", b"@", b"node@", b"@5", b"node@x", b"node@-1", b"node@1_0", b"node@ 1",
        b"node@01", b"node@+1", b"node@1.0", b"a@b@3", b"@marker@", b"@marker@x", b"@marker@-1",
        b"@marker@5@6", b"@claim@", b"@other@5", b"@skip@5", b"@skip@5@x", b"\xff@5",
        b"@departed@5", b"@departed@x@a", b"@departed@5@", b"@departed@5@a@b",
        b"node@\xd9\xa1", b"node@" + b"9" * 30,
        b"node@5\n",
    ],
)  # fmt: skip
def test_another_checkpoint_key_is_refused(key: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="checkpoint key"):
        parse_key(key)


@given(st.binary(max_size=60) | st.text(alphabet="@marker1clindskp-", max_size=30).map(str.encode))
def test_a_parsed_key_is_written_as_the_same_bytes(key: bytes) -> None:
    with suppress(InvalidRecordError):
        kind, name, epoch = parse_key(key)
        skip = skip_key(epoch, int(name)) if kind == "skip" else b""
        written = {
            "node": node_key(name, epoch), "marker": marker_key(epoch), "claim": claim_key(name),
            "skip": skip,
        }  # fmt: skip
        assert written[kind] == key


@given(_NODES | st.just(""), st.from_regex(r"[-0-9a-f]{1,36}", fullmatch=True))
def test_a_pod_key_is_split(node: str, uid: str) -> None:
    assert split_pod_key(pod_key(node, uid)) == (node, uid)


@pytest.mark.parametrize("key", [b"", b"node", b"node/", b"/", b"\xff/u", b"a/b/c"])
def test_another_pod_key_is_refused(key: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="pod key"):
        split_pod_key(key)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_pod_key_or_are_refused(key: bytes) -> None:
    with suppress(InvalidRecordError):
        assert pod_key(*split_pod_key(key)) == key
