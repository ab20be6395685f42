"""Files that users name are bounded, and YAML has neither duplicate keys nor exploding aliases."""

import datetime
import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.input_files import (
    MOST_FLOW_LEVELS,
    YAML_ERRORS,
    StrictLoader,
    items_of,
    read_file,
    yaml_documents,
    yaml_problem,
)


def alias_bomb(levels: int) -> str:
    """A value with a list of ten of the value before it, `levels` times."""
    lines = ["v0: &v0 x"]
    lines += [f"v{n + 1}: &v{n + 1} [{', '.join([f'*v{n}'] * 10)}]" for n in range(levels)]
    return "\n".join(lines)


@pytest.mark.parametrize("text", [alias_bomb(9), "a: &a [*a]", "a: &a {b: *a}"])
def test_aliases_that_explode_or_contain_themselves_are_refused(text: str) -> None:
    with pytest.raises(YAML_ERRORS) as raised:
        yaml_documents(text)
    assert "aliases repeat too many" in yaml_problem(raised.value)


@pytest.mark.parametrize("data", [b"\x8dELF", b"a: \x07", b"a: \xed\xa0\x80"])
def test_a_binary_file_is_called_no_text(data: bytes) -> None:
    with pytest.raises(YAML_ERRORS) as raised:
        yaml_documents(data)
    assert re.fullmatch(r"it is not text: [a-z ]+ at position \d", yaml_problem(raised.value))


def test_aliases_in_many_documents_are_counted_together() -> None:
    yaml_documents(alias_bomb(5))
    with pytest.raises(yaml.MarkedYAMLError):
        yaml_documents("\n---\n".join([alias_bomb(5)] * 20))


def test_usual_aliases_and_merge_keys_are_read() -> None:
    text = "x: &x {a: 1, b: 2}\ny: *x\nz: {<<: *x, b: 3}"
    assert yaml_documents(text) == [{"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 2},
                                     "z": {"a": 1, "b": 3}}]  # fmt: skip


@pytest.mark.parametrize(("items", "expected"), [(None, []), ([], []), ([1, 2], [1, 2])])
def test_a_list_without_items_is_empty(items: list[int] | None, expected: list[int]) -> None:
    assert items_of({"items": items}) == expected


def test_a_file_has_at_most_the_allowed_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_file(tmp_path / "file", 5) == b"12345"
    for file, most in ((tmp_path / "file", 4), (Path("/dev/zero"), 1000)):
        with pytest.raises(UsageError, match=f"cannot read {file}: it is larger than {most} bytes"):
            read_file(file, most)
    with pytest.raises(UsageError, match="it is larger than 1 MiB"):
        read_file(Path("/dev/zero"), 2**20)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7e1", 70.0), ("-1E-2", -0.01), ("+.5e+1", 5.0), ("1.", 1.0), ("1_000", 1000),
        ("0x1f", 31), ("-7", -7), ("0", 0), ("0b11", 3), ("1.5e3", 1500.0), (".inf", float("inf")),
        # Base 60 of YAML 1.1 is neither JSON nor read by Kubernetes.
        ("1:10", "1:10"), ("1:10.5", "1:10.5"), ("7e", "7e"), ("e7", "e7"), ("1.2.3", "1.2.3"),
        ("0x", "0x"), ("2026-11-28", datetime.date(2026, 11, 28)), ("yes", True),
    ],
)  # fmt: skip
def test_numbers_are_those_of_json_and_kubernetes(text: str, value: object) -> None:
    ((loaded,),) = yaml_documents(f"[{text}]")
    assert (loaded, type(loaded)) == (value, type(value))


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_each_number_of_json_is_read_as_it_is(value: float) -> None:
    assert yaml_documents(json.dumps({"a": value})) == [{"a": value}]


@pytest.mark.parametrize("opening", ["[", "{", "[{"])
def test_deep_nesting_is_refused_before_it_costs_time(opening: str) -> None:
    """PyYAML alone looks at each of a thousand open brackets for each of a thousand tokens."""
    loader = StrictLoader(opening * 100_000)
    with pytest.raises(RecursionError):
        loader.get_data()
    assert loader.tokens_taken + len(loader.tokens) <= MOST_FLOW_LEVELS + 10


def test_usual_nesting_is_read() -> None:
    deep = MOST_FLOW_LEVELS - 1
    ((inner,),) = yaml_documents("[" * deep + "1" + "]" * deep)
    for _ in range(deep - 1):
        (inner,) = inner
    assert inner == 1
