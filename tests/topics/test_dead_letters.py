"""A dead letter has enough of a refused record to find it in its topic."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import FutureWindowError, InvalidRecordError, UndecodableRecordError
from pipeline.topics.dead_letters import MAX_KEY_BYTES, MAX_VALUE_BYTES, dead_letter


@given(st.none() | st.binary(max_size=50), st.none() | st.binary(max_size=500))
def test_headers_have_position_length_digest_and_reason(
    key: bytes | None, value: bytes | None
) -> None:
    letter = dead_letter("springtide.samples", 3, 99, key, value, FutureWindowError("ends late"))
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == (key, value or b"")
    assert b"ends late" in headers.pop("error")
    assert headers == {
        "topic": b"springtide.samples", "partition": b"3", "offset": b"99",
        "length": str(len(value or b"")).encode(),
        "sha256": hashlib.sha256(value or b"").hexdigest().encode(),
        "reason": b"future_window",
    }  # fmt: skip


def test_key_and_value_are_cut_but_length_and_digest_are_of_the_whole() -> None:
    value = bytes(range(256)) * 1024
    letter = dead_letter("t", 0, 0, b"k" * 5000, value, UndecodableRecordError("x"))
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == (b"k" * MAX_KEY_BYTES, value[: 64 * 1024])
    assert len(letter.value) == MAX_VALUE_BYTES
    digest = hashlib.sha256(value).hexdigest().encode()
    assert (headers["length"], headers["sha256"]) == (b"262144", digest)


def test_any_text_of_an_error_fits_a_header() -> None:
    letter = dead_letter("t", 0, 0, None, None, InvalidRecordError("\ud800 ü" * 2000))
    assert len(dict(letter.headers)["error"]) <= 1024 * 6
    assert dict(letter.headers)["error"].startswith(b"\\ud800 \xc3\xbc")
